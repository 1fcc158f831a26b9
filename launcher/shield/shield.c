/* SPDX-License-Identifier: Apache-2.0
 * libaf_shield.so, preloaded into ranks and all that they start: SIGTERM, SIGUSR1 and SIGUSR2 from
 * the step's own slurmstepd do nothing; from anybody else they do what they always do.
 *
 * Why: with proctrack/linuxproc (and pgid) slurmstepd signals every process of the step. The agent
 * passes each signal to the ranks' main processes once; the direct one would be the second, and
 * kills ranks without a handler and DataLoader workers ("DataLoader worker exited unexpectedly").
 *
 * How: the kernel has our handler for these three signals wherever the program has a handler or the
 * default action; what the program has set is kept here, shown when it asks, and done when a signal
 * comes from elsewhere. A signal that the program ignores is ignored by the kernel, so that exec
 * passes this on. In force only if AF_SHIELD_STEPD_PID names a living slurmstepd; 0 means one
 * outside of this PID namespace, whose signals have sender 0.
 *
 * Not covered: static programs, raw rt_sigaction (Go), signalfd, and the instant between exec and
 * our constructor. A dropped signal may still end a sleep() or poll() early with EINTR.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef void (*handler_t)(int);
typedef handler_t (*signal_t)(int, handler_t);
typedef int (*sigaction_t)(int, const struct sigaction*, struct sigaction*);

enum { kSignals = 3, kVersions = 8 };
static const int kShielded[kSignals] = {SIGTERM, SIGUSR1, SIGUSR2};

/* What the program has set. A handler may run while another thread changes it, and cannot wait for
 * a lock: versions are written beside each other, and `now` says which one counts. Version 0 is the
 * default action and never changes. */
static struct {
  struct sigaction versions[kVersions];
  _Atomic unsigned now;
} program[kSignals];

static sigaction_t real_sigaction;
static signal_t real_signal;
static signal_t real_sysv_signal;
static int (*real_sigtimedwait)(const sigset_t*, siginfo_t*, const struct timespec*);

static bool active;
static pid_t stepd;
static pid_t owner; /* differs from getpid() in a vfork child, which shares this memory */
static atomic_flag writing = ATOMIC_FLAG_INIT;
static _Atomic int initialised;

static int index_of(int signal) {
  for (int i = 0; i < kSignals; ++i)
    if (kShielded[i] == signal) return i;
  return -1;
}

static bool from_slurmstepd(const siginfo_t* info) {
  return (info->si_code == SI_USER || info->si_code == SI_TKILL) && info->si_pid == stepd;
}

static void die_by(int signal) {
  struct sigaction standard = {.sa_handler = SIG_DFL};
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  real_sigaction(signal, &standard, NULL);
  raise(signal);
  pthread_sigmask(SIG_UNBLOCK, &only, NULL);
}

static void on_signal(int signal, siginfo_t* info, void* context) {
  if (from_slurmstepd(info)) return;
  const int before = errno;
  const int i = index_of(signal);
  unsigned now = atomic_load(&program[i].now);
  const struct sigaction action = program[i].versions[now];
  if ((action.sa_flags & (int)SA_RESETHAND) != 0)
    atomic_compare_exchange_strong(&program[i].now, &now, 0);
  if ((action.sa_flags & SA_SIGINFO) != 0)
    action.sa_sigaction(signal, info, context);
  else if (action.sa_handler == SIG_DFL)
    die_by(signal);
  else if (action.sa_handler != SIG_IGN)
    action.sa_handler(signal);
  errno = before;
}

/* The kernel's side of what the program wants. */
static int install(int signal, const struct sigaction* wanted) {
  const bool plain = (wanted->sa_flags & SA_SIGINFO) == 0;
  if (plain && wanted->sa_handler == SIG_IGN) return real_sigaction(signal, wanted, NULL);
  struct sigaction ours = *wanted;
  ours.sa_sigaction = on_signal;
  if (plain && wanted->sa_handler == SIG_DFL) {
    /* The program expects no handler at all: nothing blocked, calls go on, and on the alternate
     * stack if it has one (coroutines may have very small stacks). */
    sigemptyset(&ours.sa_mask);
    ours.sa_flags = SA_RESTART | SA_ONSTACK;
  }
  /* A dropped signal must not use up SA_RESETHAND: on_signal sees to it. */
  ours.sa_flags = (ours.sa_flags & ~(int)SA_RESETHAND) | SA_SIGINFO;
  return real_sigaction(signal, &ours, NULL);
}

static void remember(int i, const struct sigaction* wanted) {
  const unsigned next = 1 + atomic_load(&program[i].now) % (kVersions - 1);
  program[i].versions[next] = *wanted;
  atomic_store(&program[i].now, next);
}

static void before_fork(void) {
  while (atomic_flag_test_and_set(&writing)) {
  }
}
static void after_fork(void) {
  owner = getpid();
  atomic_flag_clear(&writing);
}

static bool is_slurmstepd(const char* pid) {
  char path[64], name[32] = "";
  snprintf(path, sizeof(path), "/proc/%s/comm", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t length = read(fd, name, sizeof(name) - 1);
  close(fd);
  return length > 0 && strncmp(name, "slurmstepd", 10) == 0;
}

/* The constructor, or the first call of another library's constructor that runs before ours. */
__attribute__((constructor)) static void initialise(void) {
  if (atomic_exchange(&initialised, 1) != 0) return;
  const int before = errno;
  *(void**)&real_sigaction = dlsym(RTLD_NEXT, "sigaction");
  *(void**)&real_signal = dlsym(RTLD_NEXT, "signal");
  *(void**)&real_sysv_signal = dlsym(RTLD_NEXT, "sysv_signal");
  *(void**)&real_sigtimedwait = dlsym(RTLD_NEXT, "sigtimedwait");
  const char* pid = getenv("AF_SHIELD_STEPD_PID");
  /* A job that a rank submits inherits the variable: its number is then nobody's slurmstepd here.
   */
  if (pid != NULL && (strcmp(pid, "0") == 0 || is_slurmstepd(pid))) {
    stepd = (pid_t)atoi(pid);
    owner = getpid();
    active = true;
    pthread_atfork(before_fork, after_fork, after_fork);
    for (int i = 0; i < kSignals; ++i) {
      struct sigaction found;
      if (real_sigaction(kShielded[i], NULL, &found) != 0) continue;
      /* After an exec it is the default action or ignored. */
      if (found.sa_handler == SIG_IGN)
        remember(i, &found);
      else
        install(kShielded[i], &program[i].versions[0]);
    }
  }
  errno = before;
}

EXPORT int sigaction(int signal, const struct sigaction* wanted, struct sigaction* old) {
  initialise();
  const int i = active ? index_of(signal) : -1;
  if (i < 0) return real_sigaction(signal, wanted, old);

  struct sigaction found;
  if (getpid() != owner) {
    /* A vfork child, about to exec: the kernel's table is its own, our memory is its parent's. */
    const int rc = real_sigaction(signal, wanted, &found);
    if (rc == 0 && old != NULL)
      *old = found.sa_sigaction == on_signal ? program[i].versions[atomic_load(&program[i].now)]
                                             : found;
    return rc;
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* a handler may call us: it would wait for ever */
  before_fork();
  found = program[i].versions[atomic_load(&program[i].now)];
  int rc = 0;
  if (wanted != NULL) {
    const struct sigaction copy = *wanted; /* may be the same memory as `old` */
    /* First what is to be done, then who does it: a signal in between finds the new action. */
    remember(i, &copy);
    rc = install(signal, &copy);
  }
  atomic_flag_clear(&writing);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (rc == 0 && old != NULL) *old = found;
  return rc;
}

EXPORT int __sigaction(int signal, const struct sigaction* wanted, struct sigaction* old) {
  return sigaction(signal, wanted, old);
}

static handler_t set_handler(int signal, handler_t handler, int flags, bool block_itself) {
  struct sigaction wanted = {.sa_handler = handler, .sa_flags = flags}, old;
  if (handler == SIG_ERR) {
    errno = EINVAL;
    return SIG_ERR;
  }
  if (block_itself) sigaddset(&wanted.sa_mask, signal);
  return sigaction(signal, &wanted, &old) == 0 ? old.sa_handler : SIG_ERR;
}

EXPORT handler_t signal(int number, handler_t handler) {
  initialise();
  // cppcheck-suppress CastIntegerToAddressAtReturn ; it takes the call of a pointer for a number
  if (!active || index_of(number) < 0) return real_signal(number, handler);
  return set_handler(number, handler, SA_RESTART, true);
}
EXPORT handler_t bsd_signal(int number, handler_t handler) {
  return signal(number, handler);
}
EXPORT handler_t ssignal(int number, handler_t handler) {
  return signal(number, handler);
}
EXPORT handler_t sysv_signal(int number, handler_t handler) {
  initialise();
  // cppcheck-suppress CastIntegerToAddressAtReturn ; it takes the call of a pointer for a number
  if (!active || index_of(number) < 0) return real_sysv_signal(number, handler);
  return set_handler(number, handler, (int)(SA_RESETHAND | SA_NODEFER), false);
}
EXPORT handler_t __sysv_signal(int number, handler_t handler) {
  return sysv_signal(number, handler);
}

/* Programs that block the signals and wait for them in a thread. */
EXPORT int sigtimedwait(const sigset_t* set, siginfo_t* info, const struct timespec* timeout) {
  initialise();
  struct timespec now, end = {0}, left;
  if (timeout != NULL) {
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout->tv_sec;
    end.tv_nsec += timeout->tv_nsec;
    left = *timeout;
  }
  for (;;) {
    siginfo_t found;
    const int number = real_sigtimedwait(set, &found, timeout != NULL ? &left : NULL);
    if (number <= 0 || !active || index_of(number) < 0 || !from_slurmstepd(&found)) {
      if (number > 0 && info != NULL) *info = found;
      return number;
    }
    if (timeout == NULL) continue;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long nanoseconds = (end.tv_sec - now.tv_sec) * 1000000000LL + (end.tv_nsec - now.tv_nsec);
    if (nanoseconds < 0) nanoseconds = 0;
    left.tv_sec = (time_t)(nanoseconds / 1000000000LL);
    left.tv_nsec = (long)(nanoseconds % 1000000000LL);
  }
}
EXPORT int sigwaitinfo(const sigset_t* set, siginfo_t* info) {
  return sigtimedwait(set, info, NULL);
}
EXPORT int sigwait(const sigset_t* set, int* number) {
  int found = 0;
  do {
    found = sigtimedwait(set, NULL, NULL);
  } while (found < 0 && errno == EINTR);
  if (found < 0) return errno;
  *number = found;
  return 0;
}
