// SPDX-License-Identifier: Apache-2.0
#include "launcher/front.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/steady_timer.hpp>
#include <chrono>
#include <optional>

#include "common/error.h"
#include "common/hostlist.h"
#include "launcher/authenticated_peer.h"
#include "launcher/exit_codes.h"
#include "launcher/gather.h"
#include "launcher/monotonic_seconds.h"
#include "launcher/network_address.h"
#include "launcher/own_worker.h"
#include "launcher/run_directory.h"
#include "launcher/say.h"
#include "launcher/signal_gate.h"
#include "launcher/signal_watch.h"
#include "launcher/step_command.h"
#include "launcher/tcp_bootstrap.h"

namespace af {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// The step has this long to end by itself when the coordinator has gone, then srun is told to end
// it.
constexpr std::chrono::seconds kStepEndsWithin{8};
// More than Slurm's usual KillWait (30 s).
constexpr std::chrono::seconds kSrunEndsWithin{60};

// A background process that reads its terminal is stopped: then the ranks get no input.
bool may_read_stdin() {
  return ::isatty(STDIN_FILENO) == 0 || ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

std::string front_address(const LaunchContext& context, const Environment& environment) {
  std::vector<std::string> peers;
  for (const std::string& node : expand_hostlist(value_or(environment, "SLURM_JOB_NODELIST")))
    if (node != context.node_name && peers.empty()) peers.push_back(node);
  return routable_address(peers).address;
}

class Front {
 public:
  Front(const Options& options, const LaunchContext& context, const Environment& environment)
      : options_(options),
        context_(context),
        environment_(environment),
        tasks_(options.workers > 0 ? options.workers : context.tasks),
        gather_(tasks_),
        patience_(io_) {}

  int run() {
    block_watched_signals();
    std::vector<int> signals = kForwardedSignals;
    signals.push_back(SIGCHLD);
    SignalWatch watch(io_, signals, [this](const signalfd_siginfo& info) { on_signal(info); });
    const fs::path base = context_.submit_directory.empty() ? fs::current_path()
                                                            : fs::path(context_.submit_directory);
    if (options_.dry_run) {
      directory_.path = base / "af-runs" / fmt::format(".dry-run-{}", context_.job_id);
      fs::create_directories(directory_.path);
    } else {
      directory_ =
          create_run_directory(base, options_.run_directory, context_.run_id, context_.attempt);
    }
    const std::string secret = create_secret(directory_);
    AuthenticatedListener listener(io_, secret,
                                   [this](const json& hello, std::shared_ptr<LineConnection> peer) {
                                     accept(hello, std::move(peer));
                                   });
    start_step({.address = front_address(context_, environment_), .port = listener.port()});
    io_.run();
    std::error_code ignored;
    if (options_.dry_run) fs::remove_all(directory_.path, ignored);
    return exit_code();
  }

 private:
  void start_step(const PeerAddress& self) {
    const StepCommand command =
        step_command(options_, context_, environment_,
                     {.tasks = tasks_,
                      .launcher = own_program_path(),
                      .front = to_text(self),
                      .run_directory = directory_.path.string(),
                      .generation = directory_.generation,
                      .srun_shield = installed_library("libaf_srun_shield.so"),
                      .front_pid = ::getpid(),
                      .read_stdin = may_read_stdin()});
    std::vector<std::string> argv = command.argv;
    std::vector<std::string> strings = environment_strings(command.environment);
    std::vector<char*> argv_pointers, environment_pointers;
    for (std::string& text : argv) argv_pointers.push_back(text.data());
    for (std::string& text : strings) environment_pointers.push_back(text.data());
    argv_pointers.push_back(nullptr);
    environment_pointers.push_back(nullptr);
    if (options_.verbose) {
      std::string line;
      for (const std::string& text : argv) line += (line.empty() ? "" : " ") + text;
      say(writer_, line);
    }
    const pid_t self_pid = ::getpid();
    srun_ = ::fork();
    if (srun_ < 0) throw errno_error("cannot fork");
    if (srun_ > 0) return;
    // Its own session: Ctrl-C comes from us only, and a terminal cannot stop it for reading.
    ::setsid();
    // srun ends the step when it is told TERM: nothing is left if this process is killed.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != self_pid) ::_exit(kExitLauncherLost);
    // asio's listening socket has no close-on-exec: in srun's hands it would outlive us.
    ::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    restore_signals();
    ::execvpe("srun", argv_pointers.data(), environment_pointers.data());
    ::_exit(errno == ENOENT ? kExitNotFound : kExitCannotExecute);
  }

  void accept(const json& hello, std::shared_ptr<LineConnection> peer) {
    const std::string role = hello.value("role", "");
    if (role == "gather") {
      try {
        if (gather_.present() == 0) await_others();
        gather_.add(hello.value("task", -1), hello.value("text", ""), std::move(peer));
        if (gather_.complete()) patience_.cancel();
      } catch (const Error& error) {
        say(writer_, error.what());
      }
      return;
    }
    if (role != "coordinator" || coordinator_) return peer->close();
    coordinator_ = std::move(peer);
    coordinator_->hand_over(
        [this](const std::string& line) {
          const json message = json::parse(line, nullptr, false);
          if (message.is_object() && message.value("op", "") == "exit")
            code_ = message.value("code", kExitLauncherLost);
        },
        [this](const std::string&) { coordinator_left(); });
    for (const int signal : early_signals_) pass_on(signal);
    early_signals_.clear();
  }

  void await_others() {
    patience_.expires_after(kBootstrapPatience);
    patience_.async_wait([this](const asio::error_code& error) {
      if (error) return;
      say(writer_,
          fmt::format("only {} of {} agents have joined within {} s: {} missing", gather_.present(),
                      tasks_, kBootstrapPatience.count(), gather_.missing()));
      code_ = kExitCannotStart;
      end_step();
    });
  }

  void coordinator_left() {
    if (code_) return;
    say(writer_, "lost the coordinator: it was killed, or its node is gone");
    code_ = kExitLauncherLost;
    patience_.expires_after(kStepEndsWithin);
    patience_.async_wait([this](const asio::error_code& error) {
      if (!error) end_step();
    });
  }

  void on_signal(const signalfd_siginfo& info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) return reap();
    if (!gate_.admit(signal, std::to_string(info.ssi_pid), monotonic_seconds())) return;
    if (coordinator_ && coordinator_->is_open()) return pass_on(signal);
    early_signals_.push_back(signal);
    // No world yet, and maybe never: Slurm may keep srun waiting for a place for the step.
    if (gather_.complete() || (signal != SIGTERM && signal != SIGINT && signal != SIGHUP)) return;
    if (!code_) code_ = kExitSignalBase + signal;
    end_step();
  }

  void end_step() {
    ::kill(srun_, SIGTERM);
    // srun itself waits for every task, also for those of a node that is gone.
    patience_.expires_after(kSrunEndsWithin);
    patience_.async_wait([this](const asio::error_code& error) {
      if (!error) ::kill(srun_, SIGKILL);
    });
  }

  void pass_on(int signal) {
    coordinator_->send(json{{"op", "signal"}, {"signal", signal}}.dump());
  }

  void reap() {
    int status = 0;
    pid_t pid;
    while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
      if (pid != srun_) continue;
      srun_status_ = status;
      io_.stop();
    }
  }

  int exit_code() {
    // The coordinator's last line may have come together with srun's end.
    io_.restart();
    while (io_.poll() > 0) {
    }
    if (code_) return *code_;
    const int srun_code = WIFEXITED(srun_status_) ? WEXITSTATUS(srun_status_)
                                                  : kExitSignalBase + WTERMSIG(srun_status_);
    // The agents have refused together and said why (or it was a dry run): all gave this code.
    if (gather_.complete()) return srun_code;
    if (srun_code == kExitNotFound) {
      say(writer_, "cannot find srun in PATH");
    } else {
      say(writer_, fmt::format("srun could not start the step (its exit code is {})", srun_code));
    }
    return kExitCannotStart;
  }

  const Options& options_;
  const LaunchContext& context_;
  const Environment& environment_;
  int tasks_;
  asio::io_context io_;
  OutputWriter writer_;
  RunDirectory directory_;
  Gather gather_;
  asio::steady_timer patience_;
  SignalGate gate_;
  std::vector<int> early_signals_;
  std::shared_ptr<LineConnection> coordinator_;
  pid_t srun_ = -1;
  int srun_status_ = 0;
  std::optional<int> code_;
};

}  // namespace

int run_front(const Options& options, const LaunchContext& context,
              const Environment& environment) {
  return Front(options, context, environment).run();
}

}  // namespace af
