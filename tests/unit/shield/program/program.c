/* SPDX-License-Identifier: Apache-2.0
 * A program to run under the shield: `shield_program MODE`. It says "ready" when it may be
 * signalled, and a line for each thing that shield_test.cc waits for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char* text) {
  if (write(STDOUT_FILENO, text, strlen(text)) < 0) _exit(90);
}
static void wait_for_ever(void) {
  for (;;) pause();
}
static void on_signal(int number) {
  say(number == SIGTERM ? "got TERM\n" : "got USR\n");
}
static void on_signal_info(int number, siginfo_t* info, void* context) {
  sigset_t now;
  sigprocmask(SIG_BLOCK, NULL, &now);
  if (context == NULL || info->si_signo != number) say("bad info\n");
  if (!sigismember(&now, SIGUSR2)) say("sa_mask not in force\n");
  say(info->si_pid == getppid() ? "got from parent\n" : "got from another\n");
}

/* Whatever is set is shown again, as without the shield. Exit code: the line of the first lie. */
#define CHECK(condition) \
  if (!(condition)) _exit(__LINE__ & 0xff ? __LINE__ & 0xff : 1)
static void queries(void) {
  struct sigaction set = {.sa_sigaction = on_signal_info,
                          .sa_flags = (int)(SA_SIGINFO | SA_RESTART | SA_RESETHAND)},
                   old;
  sigaddset(&set.sa_mask, SIGUSR2);
  CHECK(sigaction(SIGTERM, NULL, &old) == 0 && old.sa_handler == SIG_DFL && old.sa_flags == 0);
  CHECK(sigaction(SIGTERM, &set, &old) == 0 && old.sa_handler == SIG_DFL);
  CHECK(sigaction(SIGTERM, NULL, &old) == 0 && old.sa_sigaction == on_signal_info);
  CHECK(old.sa_flags == set.sa_flags && sigismember(&old.sa_mask, SIGUSR2));
  CHECK(signal(SIGTERM, SIG_IGN) != SIG_ERR);
  CHECK(signal(SIGTERM, on_signal) == SIG_IGN);
  CHECK(sigaction(SIGTERM, NULL, &old) == 0 && old.sa_handler == on_signal);
  CHECK((old.sa_flags & SA_RESTART) != 0);
  CHECK(sysv_signal(SIGTERM, SIG_DFL) == on_signal);
  CHECK(signal(SIGTERM, SIG_DFL) == SIG_DFL);
  /* signals that are not ours, and errors */
  CHECK(signal(SIGHUP, on_signal) == SIG_DFL && signal(SIGHUP, SIG_DFL) == on_signal);
  CHECK(sigaction(SIGKILL, &set, NULL) == -1 && errno == EINVAL);
  CHECK(signal(SIGTERM, SIG_ERR) == SIG_ERR && errno == EINVAL);
  /* a vfork child has a table of its own, but our memory */
  CHECK(signal(SIGTERM, on_signal) == SIG_DFL);
  const pid_t child = vfork();
  if (child == 0) {
    if (signal(SIGTERM, SIG_DFL) != on_signal) _exit(1);
    execl("/bin/true", "true", (char*)NULL);
    _exit(2);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(sigaction(SIGTERM, NULL, &old) == 0 && old.sa_handler == on_signal);
  raise(SIGTERM);
}

static void* set_again_and_again(void* unused) {
  for (int i = 0; i < 20000; ++i) signal(i % 2 ? SIGUSR1 : SIGUSR2, on_signal);
  return unused;
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "default") == 0) {
    say("ready\n");
    wait_for_ever();
  } else if (strcmp(mode, "handler") == 0) {
    struct sigaction action = {.sa_sigaction = on_signal_info, .sa_flags = SA_SIGINFO};
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGUSR1, on_signal);
    say("ready\n");
    wait_for_ever();
  } else if (strcmp(mode, "once") == 0) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGTERM, &action, NULL);
    say("ready\n");
    wait_for_ever();
  } else if (strcmp(mode, "ignore") == 0) {
    signal(SIGTERM, SIG_IGN);
    execl("/bin/sh", "sh", "-c", "echo ready; exec sleep 60", (char*)NULL);
  } else if (strcmp(mode, "read") == 0) {
    char byte;
    say("ready\n");
    const ssize_t length = read(STDIN_FILENO, &byte, 1);
    say(length == 1 ? "read 1\n" : "read failed\n");
  } else if (strcmp(mode, "fork") == 0) {
    if (fork() == 0) {
      say("ready\n");
      wait_for_ever();
    }
    int status = 0;
    while (wait(&status) < 0) {
    }
    say(WIFSIGNALED(status) ? "child killed\n" : "child exited\n");
  } else if (strcmp(mode, "wait") == 0) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    say("ready\n");
    int number = 0;
    if (sigwait(&set, &number) == 0 && number == SIGTERM) say("waited TERM\n");
    const struct timespec soon = {0, 300 * 1000 * 1000};
    say(sigtimedwait(&set, NULL, &soon) < 0 && errno == EAGAIN ? "timeout\n" : "one more\n");
  } else if (strcmp(mode, "threads") == 0) {
    pthread_t threads[3];
    signal(SIGTERM, on_signal);
    say("ready\n");
    for (int i = 0; i < 3; ++i) pthread_create(&threads[i], NULL, set_again_and_again, NULL);
    for (int i = 0; i < 50; ++i)
      if (fork() == 0) _exit(signal(SIGTERM, SIG_DFL) == on_signal ? 0 : 1);
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
    int status = 0, bad = 0;
    for (int i = 0; i < 50; ++i)
      if (wait(&status) < 0 || status != 0) ++bad;
    say(bad == 0 ? "done\n" : "bad\n");
  } else if (strcmp(mode, "queries") == 0) {
    queries();
  }
  return 0;
}
