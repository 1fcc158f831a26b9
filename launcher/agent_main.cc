// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent_main.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>

#include "common/error.h"
#include "launcher/activation.h"
#include "launcher/agent.h"
#include "launcher/challenge.h"
#include "launcher/coordinator.h"
#include "launcher/cpu_binding.h"
#include "launcher/exit_codes.h"
#include "launcher/joining.h"
#include "launcher/plan_text.h"
#include "launcher/rank_process.h"
#include "launcher/say.h"
#include "launcher/signal_delivery.h"
#include "launcher/signal_watch.h"

namespace af {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr auto kConnectWithin = std::chrono::milliseconds(10000);

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

class AgentProcess {
 public:
  AgentProcess(const Options& options, const LaunchContext& context, const Environment& environment)
      : options_(options), context_(context), environment_(environment), keeper_(io_) {}

  int run(int control) {
    watch(control);
    const ResolvedProgram program =
        resolve_program(options_.command[0], value_or(environment_, "PATH", kDefaultPath));
    OwnWorker own = find_own_worker(context_, environment_, program.path);
    const std::string interface = own.interface;
    joined_ = join_world(options_, context_, environment_, program, std::move(own), io_,
                         [this](const json& hello, const std::shared_ptr<LineConnection>& peer) {
                           accept_peer(hello, peer);
                         });
    if (joined_.code != 0) return refuse();
    if (options_.dry_run) return print_plan();
    make_agent(program.path, interface);
    if (context_.task == 0) make_coordinator();
    if (context_.task != 0) connect_to_coordinator();
    try {
      agent_->start();
    } catch (const Error& error) {
      to_coordinator({{"op", "cannot_start"},
                      {"why", error.what()},
                      {"code", kExitCannotStart},
                      {"ranks", agent_->not_started()}});
    }
    if (coordinator_ != nullptr) say_plan();
    io_.run();
    // Somebody has stopped reading our output, and would keep the writer's thread for ever.
    if (!writer_.drain(0)) ::_exit(code_);
    return code_;
  }

 private:
  // --- who tells this process something
  void watch(int control) {
    std::vector<int> signals = kForwardedSignals;
    signals.push_back(SIGCHLD);
    signals_ = std::make_unique<SignalWatch>(io_, signals, [this](const signalfd_siginfo& info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (!agent_) return;
      if (signal == SIGCHLD) return agent_->on_child_exit();
      // slurmstepd has told the keeper as well, which passes it on.
      if (stepd_ != 0 && info.ssi_pid == static_cast<uint32_t>(stepd_)) return;
      agent_->on_signal(signal, "direct");
    });
    if (control < 0) return;
    keeper_.assign(control);
    read_keeper();
  }

  void read_keeper() {
    keeper_.async_read_some(
        asio::buffer(keeper_bytes_), [this](const asio::error_code& error, size_t size) {
          if (error) {
            if (error != asio::error::operation_aborted && agent_)
              agent_->abandon("the process around the agent was killed", kExitLauncherLost);
            return;
          }
          for (size_t i = 0; i < size && agent_; ++i) agent_->on_signal(keeper_bytes_[i], "keeper");
          read_keeper();
        });
  }

  // --- before the ranks
  int refuse() {
    if (context_.task == 0) say(writer_, joined_.problem);
    return joined_.code;
  }

  int print_plan() {
    if (context_.task != 0) return 0;
    std::string text = plan_table(joined_.plan);
    for (const std::string& warning : joined_.warnings) text += "warning: " + warning + "\n";
    for (const std::string& warning : joined_.plan.warnings) text += "warning: " + warning + "\n";
    writer_.write(STDOUT_FILENO, text);
    std::error_code ignored;
    if (options_.front.empty()) fs::remove_all(joined_.directory.path, ignored);
    return 0;
  }

  void say_plan() {
    for (const std::string& warning : joined_.warnings) say(writer_, warning);
    for (const std::string& warning : joined_.plan.warnings) say(writer_, warning);
    say(writer_, fmt::format("{}; logs in {}", plan_sentence(joined_.plan),
                             joined_.directory.logs(context_.attempt).string()));
    if (options_.verbose)
      say(writer_, fmt::format("bootstrap {}, coordinator {}, master {}:{}", joined_.bootstrap,
                               to_text(joined_.coordinator), joined_.plan.master_address,
                               joined_.plan.master_port));
  }

  // --- the parts
  void make_agent(const std::string& program, const std::string& interface) {
    const Plan& plan = joined_.plan;
    AgentSetup setup;
    for (const RankPlan& rank : plan.ranks)
      if (context_.mode == LaunchMode::kLocal || rank.task == context_.task)
        setup.ranks.push_back(rank.rank);
    setup.facts.run_id = context_.run_id;
    setup.facts.attempt = context_.attempt;
    setup.facts.generation = joined_.directory.generation;
    setup.facts.max_workers = context_.max_workers;
    setup.facts.run_directory = joined_.directory.path.string();
    setup.facts.log_directory = joined_.directory.logs(context_.attempt).string();
    setup.facts.interface = interface;
    const int usable = static_cast<int>(plan.workers[0].cpus.size());
    setup.facts.cpus_per_rank = context_.cpus_per_task > 0
                                    ? context_.cpus_per_task
                                    : std::max(1, usable / static_cast<int>(setup.ranks.size()));
    setup.facts.shield_library = installed_library("libaf_shield.so");
    setup.facts.python_client = installed_python();
    setup.facts.slurmstepd = stepd_ = find_slurmstepd();
    setup.cpus = own_cpus(plan, setup.ranks, setup.facts.cpus_per_rank);
    setup.program = program;
    setup.command = options_.command;
    Activated activated = activate(value_or(environment_, "AF_ENV"), environment_);
    for (const std::string& warning : activated.warnings) say(writer_, warning);
    setup.inherited = std::move(activated.environment);
    setup.plan = plan;
    setup.directory = joined_.directory;
    // Unique on the node, and nobody can guess and take it.
    setup.socket_prefix = fmt::format("af-{}-{}", context_.run_id, random_hex(8));
    setup.in_step = context_.mode == LaunchMode::kStep;
    agent_ = std::make_unique<Agent>(io_, writer_, std::move(setup), [this](int code) {
      code_ = code;
      io_.stop();
    });
  }

  void make_coordinator() {
    const nlohmann::ordered_json common = {{"run", context_.run_id},
                                           {"attempt", context_.attempt},
                                           {"generation", joined_.directory.generation}};
    journal_ = std::make_unique<Journal>(writer_, joined_.directory, common);
    if (context_.attempt == 0) journal_->event("run_start", {{"command", options_.command}});
    journal_->event("attempt_start",
                    {{"job", context_.job_id}, {"host", joined_.plan.ranks[0].host}});
    journal_->state({{"state", "running"},
                     {"job", context_.job_id},
                     {"size", joined_.plan.ranks.size()},
                     {"backend", joined_.plan.backend},
                     {"command", options_.command}});
    // Outside Slurm this one agent stands for all tasks of the plan.
    std::set<int> own_tasks = {context_.task};
    if (context_.mode == LaunchMode::kLocal)
      for (const Worker& worker : joined_.plan.workers) own_tasks.insert(worker.task);
    coordinator_ =
        std::make_unique<Coordinator>(io_, writer_, *journal_, joined_.plan, own_tasks,
                                      options_.grace, [this](int code) { world_over(code); });
    coordinator_->begin();
    for (const int task : own_tasks)
      coordinator_->agent_joined(task, [this, first = task == 0](const json& order) {
        if (first) asio::post(io_, [this, order] { agent_->on_order(order); });
      });
    agent_->set_uplink([this](const json& message) { to_coordinator(message); });
    if (!options_.front.empty()) connect_to_front();
  }

  void to_coordinator(const json& message) {
    if (coordinator_ != nullptr)
      asio::post(io_, [this, message] { coordinator_->on_message(context_.task, message); });
    else if (link_ && link_->is_open())
      link_->send(message.dump(-1, ' ', false, json::error_handler_t::replace));
    else
      unsent_.push_back(message);
  }

  // Every rank has ended and every other agent has left. A world may be over before the front has
  // answered: it is told the code all the same, or it would take us for lost.
  void world_over(int code) {
    world_code_ = code;
    if (front_link_ || options_.front.empty() || front_gone_) leave();
  }

  void leave() {
    if (front_link_) {
      front_link_->send(json{{"op", "exit"}, {"code", *world_code_}}.dump());
      front_link_->close_when_sent();
    }
    asio::post(io_, [this] { agent_->finish(*world_code_); });
  }

  void front_lost() {
    front_gone_ = true;
    if (world_code_)
      leave();
    else
      coordinator_->front_left();
  }

  // --- connections
  void accept_peer(const json& hello, const std::shared_ptr<LineConnection>& peer) {
    const int task = hello.value("task", -1);
    if (coordinator_ == nullptr || hello.value("role", "") != "agent") return peer->close();
    peer->hand_over(
        [this, task](const std::string& line) {
          const json message = json::parse(line, nullptr, false);
          if (message.is_object()) coordinator_->on_message(task, message);
        },
        [this, task](const std::string& reason) {
          coordinator_->agent_left(task, "connection " + reason);
        });
    coordinator_->agent_joined(task, [peer](const json& order) {
      peer->send(order.dump(-1, ' ', false, json::error_handler_t::replace));
    });
  }

  void connect_to_coordinator() {
    connect_authenticated(
        io_, joined_.coordinator, joined_.secret, {{"role", "agent"}, {"task", context_.task}},
        kConnectWithin,
        [this](std::shared_ptr<LineConnection> ready) {
          link_ = std::move(ready);
          link_->hand_over(
              [this](const std::string& line) {
                const json order = json::parse(line, nullptr, false);
                if (order.is_object()) agent_->on_order(order);
              },
              [this](const std::string& reason) { coordinator_lost(reason); });
          for (const json& message : unsent_) to_coordinator(message);
          unsent_.clear();
          agent_->set_uplink([this](const json& message) { to_coordinator(message); });
        },
        [this](const std::string& reason) { coordinator_lost(reason); });
  }

  void coordinator_lost(const std::string& reason) {
    agent_->abandon(
        fmt::format("lost the coordinator at {}: {}", to_text(joined_.coordinator), reason),
        kExitLauncherLost);
  }

  void connect_to_front() {
    connect_authenticated(
        io_, parse_peer_address(options_.front), joined_.secret, {{"role", "coordinator"}},
        kConnectWithin,
        [this](std::shared_ptr<LineConnection> ready) {
          front_link_ = std::move(ready);
          if (world_code_) return leave();
          front_link_->hand_over(
              [this](const std::string& line) {
                const json order = json::parse(line, nullptr, false);
                if (order.is_object() && order.value("op", "") == "signal")
                  coordinator_->signal_all(order.value("signal", 0), "front");
              },
              [this](const std::string&) {
                if (!world_code_) front_lost();
              });
        },
        [this](const std::string&) { front_lost(); });
  }

  const Options& options_;
  const LaunchContext& context_;
  const Environment& environment_;
  asio::io_context io_;
  OutputWriter writer_;
  asio::posix::stream_descriptor keeper_;
  std::array<unsigned char, 64> keeper_bytes_;
  std::unique_ptr<SignalWatch> signals_;
  pid_t stepd_ = 0;
  Joined joined_;
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Agent> agent_;
  std::shared_ptr<LineConnection> link_, front_link_;
  std::deque<json> unsent_;
  std::optional<int> world_code_;  // the world is over, with this code
  bool front_gone_ = false;
  int code_ = kExitLauncherLost;
};

}  // namespace

int run_agent(const Options& options, const LaunchContext& context, const Environment& environment,
              int control) {
  return AgentProcess(options, context, environment).run(control);
}

}  // namespace af
