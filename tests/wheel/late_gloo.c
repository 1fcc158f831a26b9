// SPDX-License-Identifier: Apache-2.0
// Preloaded into a Python that trains over Gloo: its Gloo threads lose their processor for a while
// just when a collective is done, before they let go of its tensors. It spins, since a thread that
// waits for a processor is found running too.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

typedef int Broadcast(pthread_cond_t*);

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int pthread_cond_broadcast(pthread_cond_t* condition) {
  static Broadcast* next = NULL;
  // On x86_64 there is an older one too, for other structures, which dlsym() may find.
  if (next == NULL) next = (Broadcast*)dlvsym(RTLD_NEXT, "pthread_cond_broadcast", "GLIBC_2.3.2");
  if (next == NULL) next = (Broadcast*)dlsym(RTLD_NEXT, "pthread_cond_broadcast");
  const int code = next(condition);
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (strcmp(name, "pt_gloo_runloop") == 0)
    for (const double end = seconds() + 0.2; seconds() < end;) {
    }
  return code;
}
