// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <fstream>

#include "common/error.h"
#include "launcher/child_command.h"
#include "launcher/cpu_binding.h"
#include "launcher/descendants.h"
#include "launcher/exit_codes.h"
#include "launcher/monotonic_seconds.h"
#include "launcher/rank_process.h"
#include "launcher/say.h"
#include "launcher/signal_delivery.h"
#include "launcher/signal_watch.h"
#include "launcher/worker_json.h"

namespace af {
namespace {

using asio::posix::stream_descriptor;
using nlohmann::json;

constexpr double kAbandonGrace = 3;  // seconds for ranks whose coordinator has gone
constexpr double kEndWithin = 5;     // for processes that the kernel cannot end at once
constexpr auto kDieWithin = std::chrono::seconds(10);  // after KILL; freeing much memory takes time
constexpr double kFlushWithin = 30;  // for a reader of our output that has stopped reading
constexpr auto kRetryWhenFull = std::chrono::milliseconds(20);
constexpr auto kLookForStopped = std::chrono::seconds(1);
constexpr int kStoppedLooks = 2;  // in a row, before a stopped rank is given up

// CPUs for the ranks of this agent: all agents of a node compute the division of the whole node.
std::vector<std::vector<int>> own_cpus(const Plan& plan, const std::vector<int>& own_ranks,
                                       int cpus_per_rank) {
  const std::string& host = plan.ranks[static_cast<size_t>(own_ranks[0])].host;
  std::vector<RankCpus> node;
  std::vector<int> node_ranks;
  for (const RankPlan& rank : plan.ranks) {
    if (rank.host != host) continue;
    node.push_back({.allowed = plan.workers[static_cast<size_t>(rank.rank)].cpus,
                    .near_gpu = rank.gpus.empty() ? std::vector<int>() : rank.gpus[0].near_cpus});
    node_ranks.push_back(rank.rank);
  }
  const auto split = split_cpus(node, cpus_per_rank, cpu_cores());
  std::vector<std::vector<int>> own;
  own.reserve(own_ranks.size());
  for (const int rank : own_ranks)
    own.push_back(split.at(static_cast<size_t>(
        std::find(node_ranks.begin(), node_ranks.end(), rank) - node_ranks.begin())));
  return own;
}

// What a client is told of its place in a new world. LOCAL_RANK is not in it: the devices that the
// process sees are those it was started with.
constexpr const char* kWorldVariables[] = {
    "RANK",         "ROLE_RANK",        "WORLD_SIZE",   "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_RANK",   "GROUP_WORLD_SIZE", "MASTER_ADDR",  "MASTER_PORT",     "TF_CONFIG",
    "SLURM_PROCID", "SLURM_LOCALID",    "SLURM_NODEID", "SLURM_NTASKS",    "SLURM_NPROCS",
    "SLURM_NNODES", "AF_GENERATION",    "AF_BACKEND",   "AF_LOCAL_RANK"};

// Stopped by a signal, and not by a debugger ('t').
bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  return end != std::string::npos && text.size() > end + 2 && text[end + 2] == 'T';
}

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
  RankPlan plan;  // in its current world
  LogMerger log;
  Output out[2];
  std::unique_ptr<SessionServer> session;
  stream_descriptor input;         // write end of the rank's stdin
  stream_descriptor stdin_source;  // this process's stdin, while it is relayed
  std::array<char, 65536> stdin_buffer;
  pid_t pid = -1;
  bool running = false;
  std::string socket;
  SessionServer::Reply control;  // to its client, if the program has one
  int stopped_looks = 0;
};

Agent::Agent(asio::io_context& io, OutputWriter& writer, AgentSetup setup, OnFinished on_finished)
    : io_(io),
      writer_(writer),
      setup_(std::move(setup)),
      on_finished_(std::move(on_finished)),
      kill_timer_(io),
      stopped_timer_(io) {
  become_subreaper();
  if (setup_.facts.elastic) watch_stopped();
}

Agent::~Agent() = default;

void Agent::start(const Plan& plan, int generation) {
  clear_ranks();
  setup_.facts.generation = setup_.directory.generation = generation;
  const std::filesystem::path logs = setup_.directory.logs(setup_.facts.attempt);
  setup_.facts.log_directory = logs.string();
  std::filesystem::create_directories(logs);
  own_ranks_.clear();
  for (const RankPlan& rank : plan.ranks)
    if (setup_.all_ranks || rank.task == setup_.worker) own_ranks_.push_back(rank.rank);
  if (setup_.facts.cpus_per_rank == 0)
    setup_.facts.cpus_per_rank = std::max(
        1, static_cast<int>(plan.workers[static_cast<size_t>(own_ranks_.at(0))].cpus.size() /
                            own_ranks_.size()));
  const auto cpus = own_cpus(plan, own_ranks_, setup_.facts.cpus_per_rank);
  for (size_t i = 0; i < own_ranks_.size(); ++i)
    start_one(plan, plan.ranks.at(static_cast<size_t>(own_ranks_[i])), cpus[i]);
}

// Nothing of an earlier world may disturb the next: daemons that hold the GPU, half-read pipes.
void Agent::clear_ranks() {
  kill_timer_.cancel();
  if (ranks_.empty()) return;
  end_descendants(kEndWithin, running_commands());
  for (auto& rank : ranks_) {
    drain(*rank);
    for (const auto stream : {LogMerger::kStdout, LogMerger::kStderr}) {
      if (!std::exchange(rank->out[stream].open, false)) continue;
      rank->log.end(stream);
      rank->out[stream].descriptor.close();
    }
    asio::error_code ignored;
    rank->input.close(ignored);
    rank->stdin_source.close(ignored);
    rank->session.reset();
    // Its handlers, cancelled just now, still refer to it; this one is queued behind them.
    asio::post(io_, [keep = std::move(rank)] {});
  }
  ranks_.clear();
}

std::vector<int> Agent::not_started() const {
  return {own_ranks_.begin() + static_cast<std::ptrdiff_t>(ranks_.size()), own_ranks_.end()};
}

void Agent::start_one(const Plan& plan, const RankPlan& rank_plan, const std::vector<int>& cpus) {
  auto rank = std::make_unique<Rank>(
      io_, writer_, rank_plan, setup_.directory.rank_log(setup_.facts.attempt, rank_plan.rank));
  const std::string socket = fmt::format("{}-{}", setup_.socket_prefix, next_socket_++);
  rank->socket = "@" + socket;
  rank->session = std::make_unique<SessionServer>(
      io_, socket,
      [this, self = rank.get()](const json& request, const SessionServer::Reply& reply) {
        on_request(*self, request, reply);
      });
  RankCommand command = {
      .path = setup_.program,
      .argv = setup_.command,
      .environment =
          rank_environment(setup_.inherited, plan, rank_plan, setup_.facts, "@" + socket),
      .cpus = cpus,
  };
  // Input is rank 0's. In a step it goes through a pipe of ours: a rank, or a daemon it leaves,
  // that held slurmstepd's own descriptor would keep the step from ending (60 s, "Abandoning IO").
  if (rank_plan.rank == 0 && setup_.relay_stdin)
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
        {"generation", setup_.facts.generation},
        {"rank", rank.plan.rank},
        {"worker", rank.plan.task},
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

void Agent::on_request(Rank& rank, const json& request, const SessionServer::Reply& reply) {
  json message = request;
  message["rank"] = rank.plan.rank;
  const std::string op = request["op"].is_string() ? request["op"].get<std::string>() : "";
  const json id = request.value("id", json());
  for (const char* one_way : {"report", "checkpoint", "first_step", "options"})
    if (op == one_way) return send(message);
  for (const char* client : {"hello", "arrive", "finished", "saved"})
    if (op == client) return on_client(rank, op, message, reply);
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

void Agent::on_client(Rank& rank, const std::string& op, const json& request,
                      const SessionServer::Reply& reply) {
  // Read behind its end: the coordinator would take it for its successor's.
  if (!rank.running && (op == "hello" || op == "arrive")) return;
  if (op == "hello") rank.control = reply;
  json message = request;
  message["op"] = op == "hello" ? "client" : op;
  if (op == "hello" || op == "saved") message["generation"] = setup_.facts.generation;
  send(message);
}

void Agent::tell_clients(const json& event) {
  for (const auto& rank : ranks_)
    if (rank->running && rank->control) rank->control(event);
}

Plan Agent::plan_of(const json& order) const {
  return make_plan(order.value("workers", std::vector<Worker>()), setup_.plan_options);
}

void Agent::start_ordered(const json& order) {
  try {
    start(plan_of(order), order.value("generation", 0));
  } catch (const std::exception& error) {
    send({{"op", "cannot_start"},
          {"generation", order.value("generation", 0)},
          {"why", error.what()},
          {"code", kExitCannotStart},
          {"ranks", not_started()}});
  }
}

// The rank lives on: its output goes to the new world's log, its client hears where it is now.
void Agent::move_to_world(const json& order) {
  const Plan plan = plan_of(order);
  setup_.facts.generation = setup_.directory.generation = order.value("generation", 0);
  const std::filesystem::path logs = setup_.directory.logs(setup_.facts.attempt);
  setup_.facts.log_directory = logs.string();
  std::error_code ignored;
  std::filesystem::create_directories(logs, ignored);
  own_ranks_.clear();
  for (const RankPlan& rank_plan : plan.ranks) {
    if (rank_plan.task != setup_.worker || ranks_.empty() || !ranks_[0]->running) continue;
    Rank& rank = *ranks_[0];
    own_ranks_.push_back(rank_plan.rank);
    rank.plan = rank_plan;
    try {
      rank.log.move_to(rank_plan.rank,
                       setup_.directory.rank_log(setup_.facts.attempt, rank_plan.rank));
    } catch (const Error& error) {
      say(writer_, error.what());
    }
    const Environment all =
        rank_environment(setup_.inherited, plan, rank_plan, setup_.facts, rank.socket);
    json environment = json::object();
    for (const char* name : kWorldVariables)
      if (const auto found = all.find(name); found != all.end()) environment[name] = found->second;
    for (const auto& [name, value] : plan.backend_environment) environment[name] = value;
    if (rank.control)
      rank.control({{"event", "world"},
                    {"generation", setup_.facts.generation},
                    {"rank", rank_plan.rank},
                    {"world_size", plan.ranks.size()},
                    {"members", order.value("members", json::array())},
                    {"environment", environment}});
  }
}

void Agent::save(const json& order) {
  tell_clients({{"event", "save"},
                {"reason", order.value("reason", "")},
                {"deadline", order.value("deadline", json())}});
  if (gate_.admit(SIGTERM, "coordinator", monotonic_seconds())) deliver(SIGTERM, false);
}

// A rank under SIGSTOP would hold the others in their next reduction, and nobody would be at fault.
void Agent::watch_stopped() {
  stopped_timer_.expires_after(kLookForStopped);
  stopped_timer_.async_wait([this](const asio::error_code& error) {
    if (error || finished_) return;
    for (const auto& rank : ranks_) {
      if (!rank->running) continue;
      rank->stopped_looks = is_stopped(rank->pid) ? rank->stopped_looks + 1 : 0;
      if (rank->stopped_looks < kStoppedLooks) continue;
      say(writer_, fmt::format("rank {} on {} has been stopped (SIGSTOP) for {} s: it is ended, so "
                               "that the others can go on",
                               rank->plan.rank, rank->plan.host, kStoppedLooks));
      deliver_signal(rank->pid, SIGKILL);
    }
    watch_stopped();
  });
}

void Agent::on_order(const json& order) {
  const std::string op = order.value("op", "");
  if (op == "signal") {
    on_signal(order.value("signal", 0), "coordinator");
  } else if (op == "end") {
    // A late order for ranks that are gone must not end their successors.
    if (order.value("generation", setup_.facts.generation) == setup_.facts.generation)
      end_ranks(order.value("grace", 0.0));
  } else if (op == "exit") {
    finish(order.value("code", kExitLauncherLost));
  } else if (op == "start") {
    start_ordered(order);
  } else if (op == "world") {
    move_to_world(order);
  } else if (op == "event") {
    tell_clients(order.value("event", json::object()));
  } else if (op == "save") {
    save(order);
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
  // A client is told by the coordinator, in the session: its process would die of a TERM.
  deliver(signal, signal != SIGTERM);
}

void Agent::deliver(int signal, bool to_clients) {
  for (const auto& rank : ranks_)
    if (rank->running && (to_clients || !rank->control)) deliver_signal(rank->pid, signal);
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
  stopped_timer_.cancel();
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
