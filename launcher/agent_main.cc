// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent_main.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "common/atomic_file.h"
#include "common/error.h"
#include "launcher/activation.h"
#include "launcher/agent.h"
#include "launcher/challenge.h"
#include "launcher/checkpoint_watch.h"
#include "launcher/coordinator.h"
#include "launcher/exit_codes.h"
#include "launcher/job_query.h"
#include "launcher/joining.h"
#include "launcher/monotonic_seconds.h"
#include "launcher/plan_text.h"
#include "launcher/rank_process.h"
#include "launcher/run_ending.h"
#include "launcher/say.h"
#include "launcher/signal_delivery.h"
#include "launcher/signal_watch.h"
#include "launcher/slurm_satellites.h"
#include "launcher/worker_json.h"

namespace af {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr auto kConnectWithin = std::chrono::milliseconds(10000);

constexpr auto kBeat = std::chrono::seconds(1);
// Without a sign of the coordinator an agent ends its ranks: it may be cut off from a run that goes
// on without it. Jobs of a fixed size wait longer, since nobody goes on there.
constexpr double kSilenceElastic = 10, kSilenceFixed = 60;
// A satellite whose coordinator is gone: with its node, or with its process alone. It has listened
// before it asked for satellites, and holds a GPU of somebody's in vain.
constexpr auto kJoinPatience = std::chrono::seconds(25), kRefusedPatience = std::chrono::seconds(3);

class AgentProcess {
 public:
  AgentProcess(const Options& options, const LaunchContext& context, const Environment& environment)
      : options_(options),
        context_(context),
        environment_(environment),
        keeper_(io_),
        beat_timer_(io_) {}

  int run(int control) {
    watch(control);
    if (!options_.join.empty()) return run_satellite();
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
      agent_->start(joined_.plan, joined_.directory.generation);
    } catch (const std::exception& error) {
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
      if (!agent_) return taken_early(signal);
      if (signal == SIGCHLD) return agent_->on_child_exit();
      // slurmstepd has told the keeper as well, which passes it on.
      if (stepd_ != 0 && info.ssi_pid == static_cast<uint32_t>(stepd_)) return;
      signalled(signal, "direct");
    });
    if (control < 0) return;
    keeper_.assign(control);
    read_keeper();
  }

  // Slurm does not say why. For the run's own job the front, or ending_, asks; a satellite asks for
  // its own, while its rank is told.
  void signalled(int signal, const std::string& route) {
    agent_->on_signal(signal, route);
    if (signal != SIGTERM || context_.mode != LaunchMode::kStep || options_.join.empty() ||
        std::exchange(asked_why_, true))
      return;
    query_job_notice(io_, environment_, [this](const JobNotice& notice) {
      if (notice.end == JobEnd::kNone) return;
      json message = {{"op", "notice"}, {"reason", to_text(notice.end)}, {"deadline", nullptr}};
      if (notice.deadline) message["deadline"] = *notice.deadline;
      to_coordinator(message);
    });
  }

  // A satellite that is no member yet holds a GPU that somebody waits for.
  void taken_early(int signal) {
    if (options_.join.empty() || signal != SIGTERM || std::exchange(asked_why_, true)) return;
    say(writer_, "told to leave before it had joined");
    if (!link_ || !link_->is_open()) return io_.stop();
    link_->send(json{{"op", "taken"}}.dump());  // the answer is `exit`
  }

  void read_keeper() {
    keeper_.async_read_some(
        asio::buffer(keeper_bytes_), [this](const asio::error_code& error, size_t size) {
          if (error) {
            if (error != asio::error::operation_aborted && agent_)
              agent_->abandon("the process around the agent was killed", kExitLauncherLost);
            return;
          }
          for (size_t i = 0; i < size; ++i) {
            if (agent_)
              signalled(keeper_bytes_[i], "keeper");
            else
              taken_early(keeper_bytes_[i]);
          }
          read_keeper();
        });
  }

  // --- a satellite: a worker of another job, which joins a run
  int run_satellite() {
    const bool directory = options_.join.find('/') != std::string::npos;
    const fs::path run = directory ? options_.join : options_.run_directory;
    try {
      joined_.coordinator =
          parse_peer_address(directory ? read_file(run / "coordinator") : options_.join);
      joined_.secret = read_secret({.path = run});
    } catch (const Error& error) {
      // Satellites are disposable: the run has ended meanwhile, and its directory may be gone.
      say(writer_, fmt::format("cannot join the run: {}", error.what()));
      return 0;
    }
    joined_.directory.path = run;
    connect_authenticated(
        io_, joined_.coordinator, joined_.secret, {{"role", "satellite"}, {"job", context_.job_id}},
        kJoinPatience,
        [this](std::shared_ptr<LineConnection> ready) {
          link_ = std::move(ready);
          start_beats();
          link_->hand_over([this](const std::string& line) { from_coordinator(line); },
                           [this](const std::string& reason) { coordinator_lost(reason); });
        },
        [this](const std::string& reason) {
          say(writer_, fmt::format("no coordinator at {}: {}; there is nothing to join",
                                   to_text(joined_.coordinator), reason));
          io_.stop();
        },
        kRefusedPatience);
    code_ = 0;
    io_.run();
    if (!writer_.drain(0)) ::_exit(code_);
    return 0;
  }

  // What the ranks of the run are started with, from the coordinator; what belongs to this job and
  // this node stays as it is here.
  void welcomed(const json& welcome) {
    joined_.plan_options = {
        .program = welcome.value("torch", false) ? ProgramKind::kTorch : ProgramKind::kAf,
        .gpus_per_worker = welcome.value("gpus_per_worker", 0),
        .backend = welcome.value("backend", ""),
        .elastic = true};
    satellite_environment_ =
        merge_environment(welcome.value("environment", Environment()), environment_);
    satellite_command_ = welcome.value("command", std::vector<std::string>());
    satellite_facts_.run_id = welcome.value("run_id", "");
    satellite_facts_.attempt = welcome.value("attempt", 0);
    satellite_facts_.max_workers = welcome.value("max_workers", 0);
    const std::string directory = welcome.value("directory", "");
    const ResolvedProgram program =
        ::chdir(directory.c_str()) == 0
            ? resolve_program(satellite_command_.at(0),
                              value_or(satellite_environment_, "PATH", kDefaultPath))
            : ResolvedProgram{.path = "",
                              .code = kExitCannotStart,
                              .problem = fmt::format("cannot go to the directory {}: {}", directory,
                                                     std::strerror(errno))};
    if (program.code != 0) {
      link_->send(json{{"op", "unfit"}, {"why", program.problem}}.dump());
      return;
    }
    satellite_program_ = program.path;
    satellite_worker_ = find_own_worker(context_, environment_, program.path);
    link_->send(json{{"op", "card"}, {"worker", satellite_worker_->worker}}.dump());
  }

  void made_member(int number) {
    AgentSetup setup = common_setup(satellite_facts_, satellite_worker_->interface,
                                    satellite_program_, satellite_command_, satellite_environment_);
    setup.worker = number;
    setup.relay_stdin = false;
    joined_.master_port = std::move(satellite_worker_->port);
    make_agent(std::move(setup));
    agent_->set_uplink([this](const json& message) { to_coordinator(message); });
    if (asked_why_) agent_->on_signal(SIGTERM, "direct");  // it came while this was on its way
  }

  void from_coordinator(const std::string& line) {
    last_heard_ = monotonic_seconds();
    const json order = json::parse(line, nullptr, false);
    if (!order.is_object()) return;
    const std::string op = order.value("op", "");
    if (op == "beat") return;
    if (agent_) return agent_->on_order(order);
    try {
      if (op == "welcome") return welcomed(order);
      if (op == "member") return made_member(order.value("worker", -1));
    } catch (const std::exception& error) {
      link_->send(json{{"op", "unfit"}, {"why", error.what()}}.dump());
      return;
    }
    if (op == "exit") {
      if (order.contains("why")) say(writer_, order.value("why", ""));
      io_.stop();
    }
  }

  void start_beats() {
    last_heard_ = next_beat_ = monotonic_seconds();
    beat();
  }

  void beat() {
    beat_timer_.expires_after(kBeat);
    beat_timer_.async_wait([this](const asio::error_code& error) {
      if (error || !link_ || !link_->is_open()) return;
      const double now = monotonic_seconds();
      // This process was stopped, or the machine paused: that says nothing of the other side.
      if (now - next_beat_ > 2) last_heard_ += now - next_beat_ - 1;
      next_beat_ = now;
      const double allowed = joined_.plan_options.elastic ? kSilenceElastic : kSilenceFixed;
      if (now - last_heard_ > allowed) {
        link_->close();
        return coordinator_lost(fmt::format("no sign of life for {:g} s", allowed));
      }
      link_->send(R"({"op":"beat"})");
      beat();
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
  AgentSetup common_setup(RunFacts facts, const std::string& interface, const std::string& program,
                          const std::vector<std::string>& command, const Environment& environment) {
    AgentSetup setup;
    setup.facts = std::move(facts);
    setup.facts.run_directory = joined_.directory.path.string();
    setup.facts.interface = interface;
    setup.facts.cpus_per_rank = context_.cpus_per_task;
    setup.facts.shield_library = installed_library("libaf_shield.so");
    setup.facts.python_client = installed_python();
    setup.facts.slurmstepd = stepd_ = find_slurmstepd();
    setup.facts.elastic = joined_.plan_options.elastic;
    setup.plan_options = joined_.plan_options;
    setup.program = program;
    setup.command = command;
    Activated activated = activate(value_or(environment, "AF_ENV"), environment);
    for (const std::string& warning : activated.warnings) say(writer_, warning);
    setup.inherited = std::move(activated.environment);
    setup.directory = joined_.directory;
    // Unique on the node, and nobody can guess and take it.
    setup.socket_prefix = fmt::format("af-{}-{}", setup.facts.run_id, random_hex(8));
    setup.in_step = context_.mode == LaunchMode::kStep;
    return setup;
  }

  void make_agent(AgentSetup setup) {
    agent_ = std::make_unique<Agent>(io_, writer_, std::move(setup), [this](int code) {
      code_ = options_.join.empty() ? code : 0;
      io_.stop();
    });
  }

  void make_agent(const std::string& program, const std::string& interface) {
    RunFacts facts;
    facts.run_id = context_.run_id;
    facts.attempt = context_.attempt;
    facts.max_workers = context_.max_workers;
    AgentSetup setup =
        common_setup(std::move(facts), interface, program, options_.command, environment_);
    setup.worker = context_.task;
    setup.all_ranks = context_.mode == LaunchMode::kLocal && !context_.elastic;
    make_agent(std::move(setup));
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
    CoordinatorOptions settings = {.own_tasks = own_tasks,
                                   .grace = options_.grace,
                                   .plan = joined_.plan_options,
                                   .generation = joined_.directory.generation,
                                   .max_workers = context_.max_workers,
                                   .grow_interval = options_.grow_interval};
    if (!options_.front.empty())
      settings.to_front = [this](const json& message) {
        if (front_link_)
          front_link_->send(message.dump());
        else
          for_front_.push_back(message);
      };
    else if (context_.mode == LaunchMode::kStep)
      settings.to_front = [this](const json& message) {
        if (message.value("signal", 0) == SIGTERM) ending_->told(SIGTERM);
      };
    if (context_.elastic) open_to_satellites();
    coordinator_ =
        std::make_unique<Coordinator>(io_, writer_, *journal_, joined_.plan, std::move(settings),
                                      satellites_.get(), [this](int code) { world_over(code); });
    coordinator_->begin();
    if (context_.elastic)
      checkpoint_watch_ = std::make_unique<CheckpointWatch>(
          io_, writer_, checkpoint_directory(environment_, joined_.directory),
          [this](const std::string& path) { coordinator_->checkpoint_seen(path); });
    for (const int task : own_tasks)
      coordinator_->agent_joined(task, [this, first = task == 0](const json& order) {
        if (first) asio::post(io_, [this, order] { agent_->on_order(order); });
      });
    agent_->set_uplink([this](const json& message) { to_coordinator(message); });
    if (!options_.front.empty())
      connect_to_front();
    else if (context_.mode == LaunchMode::kStep)
      watch_job();
  }

  // Without a front nobody else sees to the end of the job.
  void watch_job() {
    ending_.emplace(
        io_, writer_, environment_, joined_.directory, context_.run_id, context_.attempt,
        options_.save_before,
        RunEnding::Callbacks{
            .save =
                [this](const JobNotice& notice) {
                  coordinator_->save_all(to_text(notice.end),
                                         notice.deadline ? json(*notice.deadline) : json());
                },
            .signal = [this](int signal) { coordinator_->signal_all(signal, "job"); },
            .note =
                [this](const std::string& event, const std::string& reason, int code) {
                  journal_->event(event, {{"reason", reason}, {"code", code}});
                  journal_->state({{"state", event == "requeue" ? "requeued" : "failed"},
                                   {"code", code},
                                   {"reason", reason}});
                }});
    ending_->start();
  }

  // Where those who are told the run directory instead of an address find this process.
  void open_to_satellites() {
    joined_.coordinator.port = joined_.listener->port();
    write_file_atomically(joined_.directory.path / "coordinator", to_text(joined_.coordinator));
    if (context_.mode != LaunchMode::kStep || options_.satellites.empty()) return;
    satellites_ = slurm_satellites(io_, writer_, *journal_,
                                   {.name = options_.satellites,
                                    .run_id = context_.run_id,
                                    .account = value_or(environment_, "SLURM_JOB_ACCOUNT"),
                                    .launcher = own_program_path(),
                                    .coordinator = to_text(joined_.coordinator),
                                    .run_directory = joined_.directory.path,
                                    .srun_shield = installed_library("libaf_srun_shield.so"),
                                    .verbose = options_.verbose,
                                    .inherited = environment_});
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
    if (ending_) {
      const json facts = coordinator_->exit_facts();
      return ending_->conclude({.code = code,
                                .finished = facts.value("finished", false),
                                .own_fault = facts.value("own_fault", false),
                                .progress = facts.value("progress", false),
                                .saved = facts.value("saved", false)},
                               [this](int last) {
                                 world_code_ = last;
                                 leave();
                               });
    }
    world_code_ = code;
    if (front_link_ || options_.front.empty() || front_gone_) leave();
  }

  void leave() {
    if (front_link_) {
      json last = coordinator_->exit_facts();
      last["op"] = "exit";
      last["code"] = *world_code_;
      front_link_->send(last.dump());
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
    const std::string role = hello.value("role", "");
    if (coordinator_ != nullptr && role == "satellite" && context_.elastic)
      return accept_satellite(hello.value("job", ""), peer);
    if (coordinator_ == nullptr || role != "agent") return peer->close();
    peer->hand_over(
        [this, task](const std::string& line) {
          const json message = json::parse(line, nullptr, false);
          if (message.is_object()) coordinator_->on_message(task, message);
        },
        [this, task](const std::string& reason) {
          coordinator_->agent_left(task, "connection " + reason);
        });
    coordinator_->agent_joined(
        task,
        [peer](const json& order) {
          peer->send(order.dump(-1, ' ', false, json::error_handler_t::replace));
        },
        [peer] { peer->close(); });
  }

  // Nothing is wrong with its node.
  void note_taken(const std::string& job) {
    if (!satellites_) return;
    satellites_->joined(job, "");
    satellites_->left(job, 0, true);
  }

  // It is told what to start, says what it has, and then is a member.
  void accept_satellite(const std::string& job, const std::shared_ptr<LineConnection>& peer) {
    auto number = std::make_shared<std::optional<int>>();
    const auto send = [peer](const json& order) {
      peer->send(order.dump(-1, ' ', false, json::error_handler_t::replace));
    };
    peer->hand_over(
        [this, number, job, peer, send](const std::string& line) {
          const json message = json::parse(line, nullptr, false);
          if (!message.is_object()) return;
          if (*number) return coordinator_->on_message(**number, message);
          const std::string op = message.value("op", "");
          std::string why = message.value("why", "");
          if (op == "card")
            *number = coordinator_->satellite_joined(
                job, message.value("worker", Worker()), send, [peer] { peer->close(); }, why);
          else if (op == "taken")
            note_taken(job);
          else if (op == "unfit")
            say(writer_, fmt::format("the worker of job {} cannot take part: {}", job, why));
          else
            return;
          if (*number) return send({{"op", "member"}, {"worker", **number}});
          send({{"op", "exit"}, {"code", 0}, {"why", why}});
          peer->close_when_sent();
        },
        [this, number](const std::string& reason) {
          if (*number) coordinator_->agent_left(**number, "connection " + reason);
        });
    send({{"op", "welcome"},
          {"run_id", context_.run_id},
          {"attempt", context_.attempt},
          {"max_workers", context_.max_workers},
          {"command", options_.command},
          {"directory", fs::current_path().string()},
          {"environment", environment_},
          {"torch", joined_.plan_options.program == ProgramKind::kTorch},
          {"gpus_per_worker", joined_.plan_options.gpus_per_worker},
          {"backend", joined_.plan_options.backend}});
  }

  void connect_to_coordinator() {
    connect_authenticated(
        io_, joined_.coordinator, joined_.secret, {{"role", "agent"}, {"task", context_.task}},
        kConnectWithin,
        [this](std::shared_ptr<LineConnection> ready) {
          link_ = std::move(ready);
          start_beats();
          link_->hand_over([this](const std::string& line) { from_coordinator(line); },
                           [this](const std::string& reason) { coordinator_lost(reason); });
          for (const json& message : unsent_) to_coordinator(message);
          unsent_.clear();
          agent_->set_uplink([this](const json& message) { to_coordinator(message); });
        },
        [this](const std::string& reason) { coordinator_lost(reason); });
  }

  void coordinator_lost(const std::string& reason) {
    const std::string text =
        fmt::format("lost the coordinator at {}: {}", to_text(joined_.coordinator), reason);
    if (agent_) return agent_->abandon(text, kExitLauncherLost);
    say(writer_, text);
    io_.stop();
  }

  void connect_to_front() {
    connect_authenticated(
        io_, parse_peer_address(options_.front), joined_.secret, {{"role", "coordinator"}},
        kConnectWithin,
        [this](std::shared_ptr<LineConnection> ready) {
          front_link_ = std::move(ready);
          for (const json& message : std::exchange(for_front_, {}))
            front_link_->send(message.dump());
          if (world_code_) return leave();
          front_link_->hand_over(
              [this](const std::string& line) {
                const json order = json::parse(line, nullptr, false);
                if (!order.is_object()) return;
                const std::string op = order.value("op", "");
                if (op == "signal") coordinator_->signal_all(order.value("signal", 0), "front");
                if (op == "save")
                  coordinator_->save_all(order.value("reason", ""),
                                         order.value("deadline", json()));
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
  std::unique_ptr<Satellites> satellites_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<CheckpointWatch> checkpoint_watch_;
  std::shared_ptr<LineConnection> link_, front_link_;
  std::deque<json> unsent_;
  std::vector<json> for_front_;
  std::optional<int> world_code_;  // the world is over, with this code
  bool front_gone_ = false;
  std::optional<RunEnding> ending_;  // in a step that has no front
  bool asked_why_ = false;
  // Of a satellite, until it is a member.
  std::optional<OwnWorker> satellite_worker_;
  Environment satellite_environment_;
  std::vector<std::string> satellite_command_;
  std::string satellite_program_;
  RunFacts satellite_facts_;
  asio::steady_timer beat_timer_;
  double last_heard_ = 0, next_beat_ = 0;
  int code_ = kExitLauncherLost;
};

}  // namespace

int run_agent(const Options& options, const LaunchContext& context, const Environment& environment,
              int control) {
  return AgentProcess(options, context, environment).run(control);
}

}  // namespace af
