// SPDX-License-Identifier: Apache-2.0
#include "launcher/rank_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/error.h"
#include "launcher/cpu_binding.h"
#include "launcher/exec_parts.h"
#include "launcher/exit_codes.h"
#include "launcher/signal_watch.h"

namespace af {
namespace {

// Above the agent's own: when a node runs out of memory, the kernel takes a rank and leaves the
// agent, which can say what happened.
constexpr int kOomScoreAboveAgent = 300;

int own_oom_score() {
  int score = 0;
  if (FILE* file = std::fopen("/proc/self/oom_score_adj", "re")) {
    if (std::fscanf(file, "%d", &score) != 1) score = 0;
    std::fclose(file);
  }
  return score;
}

// What the child needs, prepared before the fork: between fork and exec of a process with threads
// only async-signal-safe calls are allowed.
struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* shell_argv;
  char* const* envp;
  const std::vector<int>* cpus;
  int in, out, err, status;
  pid_t parent;
  char oom_score[16];
};

[[noreturn]] void run_child(const ChildPlan& plan) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(kExitLauncherLost);  // it died before the prctl
  ::dup2(plan.in, STDIN_FILENO);
  ::dup2(plan.out, STDOUT_FILENO);
  ::dup2(plan.err, STDERR_FILENO);
  // Sockets of libraries that do not set close-on-exec must not outlive us in the rank. The status
  // pipe has to stay until the exec, hence the flag instead of closing.
  ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  const int score = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score >= 0 && ::write(score, plan.oom_score, std::strlen(plan.oom_score)) < 0) {
    // Not allowed here: the rank runs all the same.
  }
  bind_to_cpus(*plan.cpus);
  restore_signals();
  ::execve(plan.path, plan.argv, plan.envp);
  // A script without "#!" is the shell's, as for every other launcher.
  if (errno == ENOEXEC) ::execve("/bin/sh", plan.shell_argv, plan.envp);
  const int code = errno;
  if (::write(plan.status, &code, sizeof code) < 0) ::_exit(kExitCannotStart);
  ::_exit(kExitCannotExecute);
}

}  // namespace

ResolvedProgram resolve_program(const std::string& program, const std::string& search_path) {
  ResolvedProgram result;
  const auto usable = [](const std::string& path, int* problem) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return *problem = errno, false;
    if (S_ISDIR(status.st_mode)) return *problem = EISDIR, false;
    if (::access(path.c_str(), X_OK) != 0) return *problem = EACCES, false;
    return true;
  };
  int problem = ENOENT;
  if (program.find('/') != std::string::npos) {
    if (usable(program, &problem)) {
      result.path = program;
      return result;
    }
    const bool missing = problem == ENOENT || problem == ENOTDIR;
    result.code = missing ? kExitNotFound : kExitCannotExecute;
    result.problem = "cannot run the program '" + program + "': " + std::strerror(problem);
    return result;
  }
  for (size_t start = 0; !program.empty() && start <= search_path.size();) {
    const size_t end = std::min(search_path.find(':', start), search_path.size());
    const std::string folder = search_path.substr(start, end - start);
    start = end + 1;
    const std::string path = (folder.empty() ? "." : folder) + "/" + program;
    int here = 0;
    if (usable(path, &here)) {
      result.path = path;
      return result;
    }
    if (here == EACCES) problem = EACCES;
  }
  result.code = problem == EACCES ? kExitCannotExecute : kExitNotFound;
  result.problem = problem == EACCES ? "the program '" + program + "' in PATH is not executable"
                                     : "cannot find the program '" + program + "' in PATH";
  return result;
}

RankProcess start_rank(const RankCommand& command) {
  Pipe out = make_pipe(), err = make_pipe(), status = make_pipe(), in;
  UniqueFd nothing;
  int input = STDIN_FILENO;
  if (command.input == RankCommand::Input::kPipe) {
    in = make_pipe();
    input = in.read.get();
  } else if (command.input == RankCommand::Input::kNothing) {
    nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing) throw errno_error("cannot open /dev/null");
    input = nothing.get();
  }
  std::vector<std::string> argv = command.argv;
  std::vector<std::string> shell_argv = {"/bin/sh", command.path};
  shell_argv.insert(shell_argv.end(), argv.begin() + 1, argv.end());
  std::vector<std::string> environment = environment_strings(command.environment);
  const std::vector<char*> argv_pointers = exec_pointers(argv);
  const std::vector<char*> shell_pointers = exec_pointers(shell_argv);
  const std::vector<char*> environment_pointers = exec_pointers(environment);
  ChildPlan plan = {.path = command.path.c_str(),
                    .argv = argv_pointers.data(),
                    .shell_argv = shell_pointers.data(),
                    .envp = environment_pointers.data(),
                    .cpus = &command.cpus,
                    .in = input,
                    .out = out.write.get(),
                    .err = err.write.get(),
                    .status = status.write.get(),
                    .parent = ::getpid(),
                    .oom_score = {}};
  std::snprintf(plan.oom_score, sizeof plan.oom_score, "%d",
                std::min(1000, own_oom_score() + kOomScoreAboveAgent));
  const pid_t pid = ::fork();
  if (pid < 0) throw errno_error("cannot fork");
  if (pid == 0) run_child(plan);

  status.write.reset();
  int code = 0;
  ssize_t got;
  while ((got = ::read(status.read.get(), &code, sizeof code)) < 0 && errno == EINTR) {
  }
  if (got > 0) {
    ::waitpid(pid, nullptr, 0);
    throw Error::format("cannot run {}: {}", command.path, std::strerror(code));
  }
  set_non_blocking(out.read);
  set_non_blocking(err.read);
  if (in.write) set_non_blocking(in.write);
  return {.pid = pid,
          .out = std::move(out.read),
          .err = std::move(err.read),
          .in = std::move(in.write)};
}

}  // namespace af
