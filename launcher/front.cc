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
#include <fstream>
#include <optional>

#include "common/atomic_file.h"
#include "common/error.h"
#include "common/hostlist.h"
#include "launcher/authenticated_peer.h"
#include "launcher/exec_parts.h"
#include "launcher/exit_codes.h"
#include "launcher/gather.h"
#include "launcher/monotonic_seconds.h"
#include "launcher/network_address.h"
#include "launcher/own_worker.h"
#include "launcher/run_directory.h"
#include "launcher/run_ending.h"
#include "launcher/satellite_name.h"
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
// After the coordinator's last word, agents write what is left of the ranks' output.
constexpr std::chrono::seconds kStepEndsAfterExit{60};
// More than Slurm's usual KillWait (30 s).
constexpr std::chrono::seconds kSrunEndsWithin{60};
// A killed srun is gone at once, if the kernel can end it at all.
constexpr std::chrono::seconds kSrunDiesWithin{10};
constexpr std::chrono::seconds kLastLineWithin{1};

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
        patience_(io_),
        last_line_(io_) {}

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
      ending_.emplace(
          io_, writer_, environment_, directory_, context_.run_id, context_.attempt,
          options_.save_before,
          RunEnding::Callbacks{.save = [this](const JobNotice&) { send_save(); },
                               .signal = [this](int signal) { pass_on(signal, "front"); },
                               .note = [this](const std::string& event, const std::string& reason,
                                              int code) { note_end(event, reason, code); }});
      if (const auto code = ending_->refuse()) return *code;
      ending_->start();
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
    return *code_;
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
    const std::vector<char*> argv_pointers = exec_pointers(argv);
    const std::vector<char*> environment_pointers = exec_pointers(strings);
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
          if (message.is_object()) on_message(message);
        },
        [this](const std::string&) { coordinator_left(); });
    for (const int signal : early_signals_) send_signal(signal);
    early_signals_.clear();
    if (ending_ && ending_->notice().end != JobEnd::kNone) send_save();
  }

  void on_message(const json& message) {
    const std::string op = message.value("op", "");
    // Of a preemption with a grace time Slurm tells the steps, and not us.
    if (op == "told" && message.value("signal", 0) == SIGTERM) {
      if (ending_) ending_->told(SIGTERM);
      return;
    }
    if (op != "exit" || code_) return;
    code_ = message.value("code", kExitLauncherLost);
    facts_ = {.code = *code_,
              .finished = message.value("finished", false),
              .own_fault = message.value("own_fault", false),
              .progress = message.value("progress", false),
              .saved = message.value("saved", false)};
    end_step_in(kStepEndsAfterExit);
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
    end_step_in(kStepEndsWithin);
    // Its keeper does it too, unless it was killed as well. Those that run leave by themselves.
    if (!options_.satellites.empty()) {
      const std::string problem = cancel_satellites(options_.satellites, environment_);
      if (!problem.empty())
        say(writer_,
            fmt::format("the jobs named {} may still be there: {}", options_.satellites, problem));
    }
    if (srun_ended_) conclude();
  }

  void on_signal(const signalfd_siginfo& info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) return reap();
    const bool joined = coordinator_ && coordinator_->is_open();
    // Each TERM may be another step on the way to the end: the notice, then the end of the grace.
    if (signal == SIGTERM && ending_) {
      ending_->told(signal);
      if (joined) return;
    }
    pass_on(signal, std::to_string(info.ssi_pid));
    // No world yet, and maybe never: Slurm may keep srun waiting for a place for the step.
    if (joined || gather_.complete() || (signal != SIGTERM && signal != SIGINT && signal != SIGHUP))
      return;
    if (!code_) code_ = kExitSignalBase + signal;
    end_step();
  }

  void end_step_in(std::chrono::seconds time) {
    patience_.expires_after(time);
    patience_.async_wait([this](const asio::error_code& error) {
      if (!error) end_step();
    });
  }

  void end_step() {
    if (srun_ended_) return;
    ::kill(srun_, SIGTERM);
    // srun itself waits for every task, also for those of a node that is gone.
    patience_.expires_after(kSrunEndsWithin);
    patience_.async_wait([this](const asio::error_code& error) {
      if (error) return;
      ::kill(srun_, SIGKILL);
      patience_.expires_after(kSrunDiesWithin);
      patience_.async_wait([this](const asio::error_code& again) {
        if (again) return;
        say(writer_, fmt::format("srun (process {}) cannot be ended", srun_));
        srun_left();
      });
    });
  }

  // For all ranks, once for what has come over several routes.
  void pass_on(int signal, const std::string& route) {
    if (!gate_.admit(signal, route, monotonic_seconds())) return;
    if (coordinator_ && coordinator_->is_open()) return send_signal(signal);
    early_signals_.push_back(signal);
  }

  void send_signal(int signal) {
    coordinator_->send(json{{"op", "signal"}, {"signal", signal}}.dump());
  }

  void send_save() {
    if (!coordinator_ || !coordinator_->is_open()) return;  // it is told when it comes
    if (std::exchange(save_sent_, true)) return;
    const JobNotice& notice = ending_->notice();
    coordinator_->send(json{{"op", "save"},
                            {"reason", to_text(notice.end)},
                            {"deadline", notice.deadline ? json(*notice.deadline) : json()}}
                           .dump());
  }

  // Behind the coordinator's own last lines: it has left by now.
  void note_end(const std::string& event, const std::string& reason, int code) {
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    nlohmann::ordered_json line = {{"t", now},
                                   {"event", event},
                                   {"run", context_.run_id},
                                   {"attempt", context_.attempt},
                                   {"generation", directory_.generation},
                                   {"reason", reason},
                                   {"code", code}};
    std::ofstream(directory_.events(), std::ios::app) << line.dump() + "\n" << std::flush;
    try {
      nlohmann::ordered_json state =
          nlohmann::ordered_json::parse(read_file(directory_.state()), nullptr, false);
      if (!state.is_object()) state = nlohmann::ordered_json::object();
      state["state"] = event == "requeue" ? "requeued" : "failed";
      state["code"] = code;
      state["reason"] = reason;
      write_file_atomically(directory_.state(), state.dump() + "\n");
    } catch (const Error&) {
      // The journal is the truth.
    }
  }

  void reap() {
    int status = 0;
    pid_t pid;
    while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
      if (pid != srun_) continue;
      srun_status_ = status;
      srun_left();
    }
  }

  void srun_left() {
    if (std::exchange(srun_ended_, true)) return;
    patience_.cancel();
    if (code_ || !coordinator_ || !coordinator_->is_open()) return conclude();
    // The coordinator's last line may have come together with srun's end.
    last_line_.expires_after(kLastLineWithin);
    last_line_.async_wait([this](const asio::error_code& error) {
      if (!error) conclude();
    });
  }

  void conclude() {
    if (std::exchange(concluded_, true)) return;
    if (!code_) code_ = srun_exit_code();
    if (!ending_) return io_.stop();
    facts_.code = *code_;
    ending_->conclude(facts_, [this](int code) {
      code_ = code;
      io_.stop();
    });
  }

  int srun_exit_code() {
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
  asio::steady_timer patience_, last_line_;
  std::optional<RunEnding> ending_;  // none in a dry run
  SignalGate gate_;
  std::vector<int> early_signals_;
  std::shared_ptr<LineConnection> coordinator_;
  pid_t srun_ = -1;
  int srun_status_ = 0;
  bool srun_ended_ = false, concluded_ = false;
  bool save_sent_ = false;
  RunEnding::Facts facts_;  // the coordinator's last word
  std::optional<int> code_;
};

}  // namespace

int run_front(const Options& options, const LaunchContext& context,
              const Environment& environment) {
  return Front(options, context, environment).run();
}

}  // namespace af
