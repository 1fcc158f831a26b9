// SPDX-License-Identifier: Apache-2.0
#include "launcher/child_command.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "common/error.h"
#include "common/unique_fd.h"
#include "launcher/exec_parts.h"
#include "launcher/exit_codes.h"
#include "launcher/rank_process.h"
#include "launcher/signal_watch.h"

namespace af {
namespace {

std::set<pid_t>& commands() {
  static std::set<pid_t> running;
  return running;
}

using asio::posix::stream_descriptor;

// What the process in between tells. Shorter than PIPE_BUF: whole or not at all.
struct Told {
  enum Kind : int { kNotExecuted, kEnded } kind;
  int value;  // errno, or the wait status
};

// In memory, so that nobody has to write while the command reads.
UniqueFd input_file(const std::string& text) {
  if (text.empty()) {
    UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing) throw errno_error("cannot open /dev/null");
    return nothing;
  }
  UniqueFd file(::memfd_create("af-input", MFD_CLOEXEC));
  if (!file) throw errno_error("cannot make a file in memory");
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(file.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw errno_error("cannot write a file in memory");
    done += static_cast<size_t>(n);
  }
  if (::lseek(file.get(), 0, SEEK_SET) != 0) throw errno_error("cannot rewind a file in memory");
  return file;
}

// Made before the fork: this process has threads, so that after it only async-signal-safe calls
// are allowed (hence _Fork, too).
struct Plan {
  const char* path;
  char* const* argv;
  char* const* envp;
  int in, out, err, told;
  pid_t parent;
};

void tell(int fd, Told::Kind kind, int value) {
  const Told told = {kind, value};
  if (::write(fd, &told, sizeof told) < 0) {
    // Nobody is interested any more.
  }
}

[[noreturn]] void run_command(const Plan& plan, pid_t between) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != between) ::_exit(kExitLauncherLost);
  restore_signals();
  ::execve(plan.path, plan.argv, plan.envp);
  tell(plan.told, Told::kNotExecuted, errno);
  ::_exit(kExitCannotExecute);
}

[[noreturn]] void run_between(const Plan& plan) {
  // A session of its own: no terminal's signals, and a process group that can be killed as one.
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(kExitLauncherLost);  // it died before the prctl
  // slurmstepd may signal every process of a step: this one stays until its child has ended.
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::signal(SIGCHLD, SIG_DFL);  // ignored by our parent's parent, there would be nothing to wait for
  ::dup2(plan.in, STDIN_FILENO);
  ::dup2(plan.out, STDOUT_FILENO);
  ::dup2(plan.err, STDERR_FILENO);
  ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  const pid_t self = ::getpid();
  const pid_t pid = ::_Fork();
  if (pid == 0) run_command(plan, self);
  if (pid < 0) {
    tell(plan.told, Told::kNotExecuted, errno);
    ::_exit(kExitCannotExecute);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  tell(plan.told, Told::kEnded, status);
  ::_exit(0);
}

}  // namespace

struct ChildCommand::Parts {
  Parts(asio::io_context& io_context, ChildRequest child_request, OnEnd on_end_callback)
      : io(io_context),
        request(std::move(child_request)),
        on_end(std::move(on_end_callback)),
        between(io),
        streams{stream_descriptor(io), stream_descriptor(io)},
        limit(io) {}

  asio::io_context& io;
  ChildRequest request;
  OnEnd on_end;
  pid_t group = -1;           // of the process in between, its leader
  stream_descriptor between;  // a pidfd: readable when that process has ended
  std::array<stream_descriptor, 2> streams;
  asio::steady_timer limit;
  UniqueFd told;
  ChildResult result;

  // 0: nothing there now, or the end.
  size_t read_some(size_t stream) {
    char buffer[16384];
    if (!streams[stream].is_open()) return 0;
    const ssize_t size = ::read(streams[stream].native_handle(), buffer, sizeof buffer);
    if (size <= 0) return 0;
    std::string& kept = stream == 0 ? result.out : result.err;
    kept.append(buffer, std::min(static_cast<size_t>(size), request.most_output - kept.size()));
    return static_cast<size_t>(size);
  }
};

ChildCommand::ChildCommand(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
ChildCommand::~ChildCommand() = default;

std::shared_ptr<ChildCommand> ChildCommand::start(asio::io_context& io, ChildRequest request,
                                                  OnEnd on_end) {
  std::shared_ptr<ChildCommand> self(
      new ChildCommand(std::make_unique<Parts>(io, std::move(request), std::move(on_end))));
  Parts& parts = *self->parts_;
  ChildRequest& asked = parts.request;
  const ResolvedProgram program =
      resolve_program(asked.argv.at(0), value_or(asked.environment, "PATH", kDefaultPath));
  if (program.code != 0) {
    parts.result.code = program.code;
    parts.result.problem = program.problem;
    asio::post(io, [self] { self->ended(); });
    return self;
  }
  Pipe out = make_pipe(), err = make_pipe(), told = make_pipe();
  for (const Pipe* pipe : {&out, &err, &told}) set_non_blocking(pipe->read);
  const UniqueFd in = input_file(asked.input);
  std::vector<std::string> environment = environment_strings(asked.environment);
  const std::vector<char*> argv_pointers = exec_pointers(asked.argv);
  const std::vector<char*> environment_pointers = exec_pointers(environment);
  const Plan plan = {.path = program.path.c_str(),
                     .argv = argv_pointers.data(),
                     .envp = environment_pointers.data(),
                     .in = in.get(),
                     .out = out.write.get(),
                     .err = err.write.get(),
                     .told = told.write.get(),
                     .parent = ::getpid()};
  const pid_t pid = ::_Fork();
  if (pid < 0) throw errno_error("cannot fork");
  if (pid == 0) run_between(plan);
  parts.group = pid;
  commands().insert(pid);
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    const Error error = errno_error("cannot watch " + asked.argv[0]);
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    commands().erase(pid);
    throw error;
  }
  ::fcntl(pidfd, F_SETFD, FD_CLOEXEC);
  parts.between.assign(pidfd);
  parts.streams[0].assign(out.read.release());
  parts.streams[1].assign(err.read.release());
  parts.told = std::move(told.read);
  parts.limit.expires_after(std::chrono::milliseconds(static_cast<int64_t>(asked.limit * 1000)));
  self->watch(self);
  return self;
}

const std::set<pid_t>& running_commands() {
  return commands();
}

void ChildCommand::watch(const std::shared_ptr<ChildCommand>& self) {
  parts_->limit.async_wait([self](const asio::error_code& error) {
    if (error) return;
    self->parts_->result.timed_out = true;
    self->kill_group();
  });
  parts_->between.async_wait(stream_descriptor::wait_read, [self](const asio::error_code& error) {
    if (!error) self->ended();
  });
  read(self, 0);
  read(self, 1);
}

// By wait and read, not async_read_some: what the loop had read, but not yet handed over, when the
// end is told would be lost or come twice.
void ChildCommand::read(const std::shared_ptr<ChildCommand>& self, size_t stream) {
  parts_->streams[stream].async_wait(stream_descriptor::wait_read,
                                     [self, stream](const asio::error_code& error) {
                                       if (!error && self->parts_->read_some(stream) > 0)
                                         self->read(self, stream);
                                     });
}

// What is in the pipe now, and no more: something that the command has left behind may hold it
// open, and even write into it.
void ChildCommand::drain(size_t stream) {
  for (size_t there = parts_->request.most_output; there > 0;) {
    const size_t size = parts_->read_some(stream);
    if (size == 0) return;
    there -= std::min(there, size);
  }
}

void ChildCommand::kill_group() {
  if (parts_->group <= 0) return;
  ::kill(-parts_->group, SIGKILL);
  // Just started, it has no group yet.
  ::syscall(SYS_pidfd_send_signal, parts_->between.native_handle(), SIGKILL, nullptr, 0);
}

void ChildCommand::ended() {
  Parts& parts = *parts_;
  commands().erase(parts.group);
  if (parts.group > 0) {
    Told told = {Told::kEnded, 0};
    // A last line from it counts more than a limit that was over at the same moment.
    const bool has_told =
        ::read(parts.told.get(), &told, sizeof told) == static_cast<ssize_t>(sizeof told);
    ChildResult& result = parts.result;
    result.timed_out = result.timed_out && !has_told;
    if (!has_told) {
      result.signal = SIGKILL;  // the process in between was killed, and the command with it
    } else if (told.kind == Told::kNotExecuted) {
      result.code = told.value == ENOENT ? kExitNotFound : kExitCannotExecute;
      result.problem = "cannot run " + parts.request.argv[0] + ": " + std::strerror(told.value);
    } else if (WIFEXITED(told.value)) {
      result.code = WEXITSTATUS(told.value);
    } else {
      result.signal = WTERMSIG(told.value);
    }
    drain(0);
    drain(1);
    // ECHILD: somebody else's waitpid(-1) was faster. By pidfd, so that it is nobody else's child.
    siginfo_t ignored;
    ::waitid(P_PIDFD, static_cast<id_t>(parts.between.native_handle()), &ignored,
             WEXITED | WNOHANG);
  }
  asio::error_code unused;
  parts.limit.cancel();
  parts.between.close(unused);
  for (stream_descriptor& stream : parts.streams) stream.close(unused);
  parts.group = -1;
  if (const OnEnd on_end = std::exchange(parts.on_end, nullptr)) on_end(std::move(parts.result));
}

void ChildCommand::abandon() {
  parts_->on_end = nullptr;
  kill_group();
}

}  // namespace af
