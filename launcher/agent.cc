// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <asio/read.hpp>
#include <asio/write.hpp>
#include <chrono>

#include "common/error.h"
#include "launcher/descendants.h"
#include "launcher/exit_codes.h"
#include "launcher/monotonic_seconds.h"
#include "launcher/rank_process.h"
#include "launcher/say.h"
#include "launcher/signal_delivery.h"
#include "launcher/signal_watch.h"

namespace af {
namespace {

using asio::posix::stream_descriptor;
using nlohmann::json;

constexpr double kAbandonGrace = 3;  // seconds for ranks whose coordinator has gone
constexpr double kEndWithin = 5;     // for processes that the kernel cannot end at once
constexpr auto kDieWithin = std::chrono::seconds(10);  // after KILL; freeing much memory takes time
constexpr double kFlushWithin = 30;  // for a reader of our output that has stopped reading
constexpr auto kRetryWhenFull = std::chrono::milliseconds(20);

}  // namespace

struct Agent::Output {
  explicit Output(asio::io_context& io) : descriptor(io), retry(io) {}
  stream_descriptor descriptor;
  asio::steady_timer retry;
  bool open = false;
};

struct Agent::Rank {
  Rank(asio::io_context& io, OutputWriter& writer, const RankPlan& rank_plan,
       const std::filesystem::path& log_path)
      : plan(rank_plan),
        log(writer, rank_plan.rank, log_path),
        out{Output(io), Output(io)},
        input(io),
        stdin_source(io) {}
  const RankPlan& plan;
  LogMerger log;
  Output out[2];
  std::unique_ptr<SessionServer> session;
  stream_descriptor input;         // write end of the rank's stdin
  stream_descriptor stdin_source;  // this process's stdin, while it is relayed
  std::array<char, 65536> stdin_buffer;
  pid_t pid = -1;
  bool running = false;
};

Agent::Agent(asio::io_context& io, OutputWriter& writer, AgentSetup setup, OnFinished on_finished)
    : io_(io),
      writer_(writer),
      setup_(std::move(setup)),
      on_finished_(std::move(on_finished)),
      kill_timer_(io) {}

Agent::~Agent() = default;

void Agent::start() {
  become_subreaper();
  for (size_t i = 0; i < setup_.ranks.size(); ++i) start_one(i);
}

std::vector<int> Agent::not_started() const {
  return {setup_.ranks.begin() + static_cast<std::ptrdiff_t>(ranks_.size()), setup_.ranks.end()};
}

void Agent::start_one(size_t index) {
  const RankPlan& plan = setup_.plan.ranks.at(static_cast<size_t>(setup_.ranks[index]));
  auto rank = std::make_unique<Rank>(io_, writer_, plan,
                                     setup_.directory.rank_log(setup_.facts.attempt, plan.rank));
  const std::string socket = fmt::format("{}-{}", setup_.socket_prefix, plan.rank);
  rank->session = std::make_unique<SessionServer>(
      io_, socket,
      [this, number = plan.rank](const json& request, const SessionServer::Reply& reply) {
        on_request(number, request, reply);
      });
  RankCommand command = {
      .path = setup_.program,
      .argv = setup_.command,
      .environment =
          rank_environment(setup_.inherited, setup_.plan, plan, setup_.facts, "@" + socket),
      .cpus = setup_.cpus.empty() ? std::vector<int>() : setup_.cpus[index],
  };
  // Input is rank 0's. In a step it goes through a pipe of ours: a rank, or a daemon it leaves,
  // that held slurmstepd's own descriptor would keep the step from ending (60 s, "Abandoning IO").
  if (plan.rank == 0)
    command.input = setup_.in_step ? RankCommand::Input::kPipe : RankCommand::Input::kInherit;
  RankProcess process = start_rank(command);
  rank->pid = process.pid;
  rank->running = true;
  const int streams[2] = {process.out.release(), process.err.release()};
  for (const auto stream : {LogMerger::kStdout, LogMerger::kStderr}) {
    rank->out[stream].descriptor.assign(streams[stream]);
    rank->out[stream].open = true;
  }
  if (process.in) rank->input.assign(process.in.release());
  ranks_.push_back(std::move(rank));
  Rank& started = *ranks_.back();
  read(started, LogMerger::kStdout);
  read(started, LogMerger::kStderr);
  if (started.input.is_open()) {
    asio::error_code error;
    // A copy: closing it at the end must not close descriptor 0 itself. Regular files cannot be
    // watched by epoll; a step's input never is one.
    started.stdin_source.assign(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3), error);
    if (error)
      started.input.close();
    else
      relay_stdin(started);
  }
}

void Agent::relay_stdin(Rank& rank) {
  rank.stdin_source.async_read_some(
      asio::buffer(rank.stdin_buffer), [this, &rank](const asio::error_code& error, size_t size) {
        asio::error_code ignored;
        if (error || !rank.input.is_open()) {
          rank.input.close(ignored);
          rank.stdin_source.close(ignored);
          return;
        }
        asio::async_write(rank.input, asio::buffer(rank.stdin_buffer, size),
                          [this, &rank](const asio::error_code& broken, size_t) {
                            asio::error_code unused;
                            if (!broken) return relay_stdin(rank);
                            rank.input.close(unused);
                            rank.stdin_source.close(unused);
                          });
      });
}

void Agent::read(Rank& rank, LogMerger::Stream stream) {
  Output& out = rank.out[stream];
  if (!out.open) return;
  if (writer_.waiting() > OutputWriter::kFull) {
    out.retry.expires_after(kRetryWhenFull);
    out.retry.async_wait([this, &rank, stream](const asio::error_code& error) {
      if (!error) read(rank, stream);
    });
    return;
  }
  out.descriptor.async_wait(
      stream_descriptor::wait_read, [this, &rank, stream](const asio::error_code& error) {
        Output& ready = rank.out[stream];
        if (error || !ready.open) return;
        char buffer[65536];
        const ssize_t n = ::read(ready.descriptor.native_handle(), buffer, sizeof buffer);
        if (n > 0) rank.log.feed(stream, {buffer, static_cast<size_t>(n)});
        if (n == 0) {
          rank.log.end(stream);
          ready.open = false;
          ready.descriptor.close();
          return;
        }
        read(rank, stream);
      });
}

// What a rank has written before it died is in its pipes still: nothing of it may be lost, and its
// last lines are wanted for the report. No more than is there now: a process that it has left
// behind may write faster than we read.
void Agent::drain(Rank& rank) {
  for (const auto stream : {LogMerger::kStdout, LogMerger::kStderr}) {
    Output& out = rank.out[stream];
    int there = 0;
    if (!out.open || ::ioctl(out.descriptor.native_handle(), FIONREAD, &there) != 0) continue;
    char buffer[65536];
    while (there > 0) {
      const ssize_t n = ::read(out.descriptor.native_handle(), buffer, sizeof buffer);
      if (n <= 0) break;
      rank.log.feed(stream, {buffer, static_cast<size_t>(n)});
      there -= static_cast<int>(n);
    }
  }
}

void Agent::on_child_exit() {
  int status = 0;
  pid_t pid;
  while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0)
    for (const auto& rank : ranks_)
      if (rank->pid == pid && rank->running) rank_ended(*rank, status);
}

void Agent::rank_ended(Rank& rank, int status) {
  rank.running = false;
  drain(rank);
  for (const auto stream : {LogMerger::kStdout, LogMerger::kStderr}) rank.log.end(stream);
  const auto& lines = rank.log.last_lines();
  send({{"op", "rank_exit"},
        {"rank", rank.plan.rank},
        {"host", rank.plan.host},
        {"code", WIFEXITED(status) ? WEXITSTATUS(status) : 0},
        {"signal", WIFSIGNALED(status) ? WTERMSIG(status) : 0},
        {"last_lines", std::vector<std::string>(lines.begin(), lines.end())},
        {"log", rank.log.log().string()}});
  if (abandoned_code_ != 0 && !any_running()) finish(abandoned_code_);
}

bool Agent::any_running() const {
  for (const auto& rank : ranks_)
    if (rank->running) return true;
  return false;
}

void Agent::set_uplink(Uplink uplink) {
  uplink_ = std::move(uplink);
  while (!unsent_.empty() && uplink_) {
    uplink_(unsent_.front());
    unsent_.pop_front();
  }
}

void Agent::send(const json& message) {
  if (uplink_)
    uplink_(message);
  else
    unsent_.push_back(message);
}

void Agent::on_request(int rank, const json& request, const SessionServer::Reply& reply) {
  json message = request;
  message["rank"] = rank;
  const std::string op = request["op"].is_string() ? request["op"].get<std::string>() : "";
  const json id = request.value("id", json());
  if (op == "report" || op == "checkpoint") return send(message);
  if (op != "set" && op != "get")
    return reply({{"id", id}, {"ok", false}, {"error", "unknown op '" + op + "'"}});
  message["ref"] = next_ref_;
  waiting_[next_ref_++] = [id, reply](const json& answer) {
    json with_id = answer;
    with_id["id"] = id;
    reply(with_id);
  };
  send(message);
}

void Agent::on_order(const json& order) {
  const std::string op = order.value("op", "");
  if (op == "signal") {
    on_signal(order.value("signal", 0), "coordinator");
  } else if (op == "end") {
    end_ranks(order.value("grace", 0.0));
  } else if (op == "exit") {
    finish(order.value("code", kExitLauncherLost));
  } else if (op == "reply") {
    const auto found = waiting_.find(order.value("ref", int64_t{0}));
    if (found == waiting_.end()) return;
    const SessionServer::Reply reply = found->second;
    waiting_.erase(found);
    reply(order.value("answer", json::object()));
  }
}

void Agent::on_signal(int signal, const std::string& route) {
  if (signal <= 0 || finished_ || !gate_.admit(signal, route, monotonic_seconds())) return;
  if (route != "coordinator") send({{"op", "told"}, {"signal", signal}});
  deliver(signal);
}

void Agent::deliver(int signal) {
  for (const auto& rank : ranks_)
    if (rank->running) deliver_signal(rank->pid, signal);
}

void Agent::end_ranks(double grace) {
  deliver(SIGTERM);
  // A stopped process (SIGSTOP, a debugger) acts on TERM only when it goes on.
  deliver(SIGCONT);
  kill_timer_.expires_after(std::chrono::milliseconds(static_cast<int64_t>(grace * 1000)));
  kill_timer_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    deliver(SIGKILL);
    kill_timer_.expires_after(kDieWithin);
    kill_timer_.async_wait([this](const asio::error_code& again) {
      if (again) return;
      // In uninterruptible sleep (a dead file server, a broken GPU): the world must not wait for it
      // until the job's time is over. finish() says which process it is.
      for (const auto& rank : ranks_)
        if (rank->running) rank_ended(*rank, SIGKILL);
    });
  });
}

void Agent::abandon(const std::string& why, int code) {
  if (finished_ || abandoned_code_ != 0) return;
  say(writer_, why);
  uplink_ = [](const json&) {};
  abandoned_code_ = code;
  if (!any_running()) return finish(code);
  end_ranks(kAbandonGrace);
}

void Agent::finish(int code) {
  if (std::exchange(finished_, true)) return;
  kill_timer_.cancel();
  const std::vector<pid_t> left = end_descendants(kEndWithin);
  for (const auto& rank : ranks_) {
    drain(*rank);
    for (const auto stream : {LogMerger::kStdout, LogMerger::kStderr}) {
      if (!std::exchange(rank->out[stream].open, false)) continue;
      rank->log.end(stream);
      rank->out[stream].descriptor.close();
    }
    rank->session.reset();
  }
  for (const pid_t pid : left)
    say(writer_, fmt::format("process {} on {} cannot be ended (uninterruptible sleep?)", pid,
                             ranks_.empty() ? "this node" : ranks_[0]->plan.host));
  writer_.drain(kFlushWithin);
  on_finished_(code);
}

}  // namespace af
