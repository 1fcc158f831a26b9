// SPDX-License-Identifier: Apache-2.0
#include "launcher/joining.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "launcher/exit_codes.h"
#include "launcher/mpi_bootstrap.h"
#include "launcher/tcp_bootstrap.h"
#include "launcher/worker_json.h"

namespace af {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

fs::path base_directory(const LaunchContext& context) {
  return context.submit_directory.empty() ? fs::current_path() : fs::path(context.submit_directory);
}

fs::path rendezvous_file(const Options& options, const LaunchContext& context) {
  const fs::path base = base_directory(context);
  const fs::path folder =
      options.run_directory.empty() ? base / "af-runs" : base / options.run_directory;
  return folder /
         fmt::format(".rendezvous-{}.{}.{}", context.job_id, context.step_id, context.attempt);
}

// Slurm's PMIx plugin has set these in the step, or it has not been asked for.
bool has_pmix(const Environment& environment) {
  return environment.contains("PMIX_RANK");
}

enum class Way { kNone, kMpi, kTcp };

Way choose_way(const Options& options, const LaunchContext& context,
               const Environment& environment) {
  if (context.mode == LaunchMode::kLocal) return Way::kNone;
  if (options.bootstrap == "mpi") {
    if (!has_pmix(environment))
      throw Error("--bootstrap=mpi needs a step with PMIx: start it with srun --mpi=pmix");
    return Way::kMpi;
  }
  if (context.tasks == 1 && options.front.empty()) return Way::kNone;
  return Way::kTcp;  // also for "auto": MPI_Init costs 0.2 s more and finds nothing more
}

// The agents exchange this; task 0's has more in it.
struct Card {
  std::vector<Worker> workers;  // of this agent: one, or all of them outside Slurm
  std::vector<std::string> warnings;
  std::string problem;
  int code = 0;
  PeerAddress coordinator;
  std::string run_directory;
  int generation = 0;
};

std::string to_text(const Card& card) {
  return json{{"workers", card.workers},
              {"warnings", card.warnings},
              {"problem", card.problem},
              {"code", card.code},
              {"address", card.coordinator.address},
              {"port", card.coordinator.port},
              {"run_directory", card.run_directory},
              {"generation", card.generation}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Card parse_card(const std::string& text) {
  const json j = json::parse(text);
  return {.workers = j.value("workers", std::vector<Worker>()),
          .warnings = j.value("warnings", std::vector<std::string>()),
          .problem = j.value("problem", ""),
          .code = j.value("code", 0),
          .coordinator = {.address = j.value("address", ""), .port = j.value("port", uint16_t{0})},
          .run_directory = j.value("run_directory", ""),
          .generation = j.value("generation", 0)};
}

std::vector<Worker> local_workers(const Worker& worker, int number) {
  std::vector<Worker> workers(static_cast<size_t>(number), worker);
  for (size_t i = 0; i < workers.size(); ++i) {
    workers[i].task = static_cast<int>(i);
    // TF_CONFIG wants a port for each; the launcher holds the first one alone.
    if (i > 0) workers[i].port = hold_free_port().port();
  }
  return workers;
}

// Task 0 announces itself in this folder. Where it cannot be written, nobody has to wait for that.
void check_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error && ::access(folder.c_str(), W_OK) == 0) return;
  throw Error::format("cannot write in the run directory {}: {}; choose another with --run-dir",
                      folder.string(), error ? error.message() : std::strerror(errno));
}

std::unique_ptr<Bootstrap> make_bootstrap(Way way, const Options& options,
                                          const LaunchContext& context, const Joined& joined,
                                          const std::string& my_address) {
  if (way == Way::kMpi) return make_mpi_bootstrap(context.task, context.tasks);
  if (!options.front.empty())
    return make_tcp_bootstrap(context.task, parse_peer_address(options.front), joined.secret);
  const fs::path file = rendezvous_file(options, context);
  if (context.task == 0)
    return make_tcp_bootstrap_hub(context.tasks, my_address, joined.secret, file,
                                  joined.directory.path);
  const Rendezvous rendezvous = await_rendezvous(file, kBootstrapPatience);
  const std::string secret = read_secret({.path = rendezvous.run_directory});
  return make_tcp_bootstrap(context.task, rendezvous.hub, secret);
}

// Agents of one node see the same thing: it is said once.
void note(std::vector<std::string>& warnings, const std::string& text) {
  if (std::find(warnings.begin(), warnings.end(), text) == warnings.end()) warnings.push_back(text);
}

// The run directory and the secret, as far as this agent can know them before the bootstrap.
void open_run_directory(const Options& options, const LaunchContext& context, Joined& joined) {
  if (options.agent && !options.front.empty()) {
    joined.directory = {.path = options.run_directory, .generation = options.generation};
  } else if (context.task == 0 && !options.dry_run) {
    joined.directory = create_run_directory(base_directory(context), options.run_directory,
                                            context.run_id, context.attempt);
    create_secret(joined.directory);
  } else if (context.task == 0) {
    // A dry run leaves no run behind; its agents still need a secret to meet.
    joined.directory.path = base_directory(context) / "af-runs" /
                            fmt::format(".dry-run-{}.{}", context.job_id, context.step_id);
    if (context.tasks > 1) {
      fs::create_directories(joined.directory.path);
      create_secret(joined.directory);
    }
    return;
  } else {
    return;
  }
  joined.secret = read_secret(joined.directory);
}

}  // namespace

Joined join_world(const Options& options, const LaunchContext& context,
                  const Environment& environment, const ResolvedProgram& program, OwnWorker own,
                  asio::io_context& io, AuthenticatedListener::OnPeer on_peer) {
  const Way way = choose_way(options, context, environment);
  Joined joined;
  if (way == Way::kNone && program.code != 0) {
    joined.code = program.code;
    joined.problem = program.problem;
    return joined;
  }
  joined.master_port = std::move(own.port);
  open_run_directory(options, context, joined);
  if (joined.secret.empty() && context.task == 0 && context.tasks > 1)
    joined.secret = read_secret(joined.directory);

  Card mine = {.workers = context.mode == LaunchMode::kLocal
                              ? local_workers(own.worker, context.tasks)
                              : std::vector<Worker>{own.worker},
               .warnings = own.warnings,
               .problem = program.problem,
               .code = program.code,
               .coordinator = {.address = own.worker.address, .port = 0},
               .run_directory = joined.directory.path.string(),
               .generation = joined.directory.generation};
  if (context.task == 0 && ((way != Way::kNone && context.tasks > 1) || context.elastic)) {
    joined.listener =
        std::make_unique<AuthenticatedListener>(io, joined.secret, std::move(on_peer));
    mine.coordinator.port = joined.listener->port();
  }

  if (way == Way::kTcp && options.front.empty() && context.task != 0) {
    try {
      check_folder(rendezvous_file(options, context).parent_path());
    } catch (const Error& error) {
      // One line per node is enough, and on task 0's node that agent says it.
      if (number_or(environment, "SLURM_NODEID", 0) > 0 &&
          number_or(environment, "SLURM_LOCALID", 0) == 0)
        throw;
      joined.code = kExitCannotStart;
      joined.problem = error.what();
      return joined;
    }
  }

  std::vector<std::string> texts = {to_text(mine)};
  joined.bootstrap = "none";
  if (way != Way::kNone) {
    const auto bootstrap = make_bootstrap(way, options, context, joined, own.worker.address);
    texts = bootstrap->all_gather(texts[0]);
    joined.bootstrap = bootstrap->name();
  }

  std::vector<Worker> workers;
  for (size_t i = 0; i < texts.size(); ++i) {
    const Card card = parse_card(texts[i]);
    if (i == 0) {
      joined.coordinator = card.coordinator;
      joined.directory = {.path = card.run_directory, .generation = card.generation};
    }
    workers.insert(workers.end(), card.workers.begin(), card.workers.end());
    for (const std::string& warning : card.warnings)
      note(joined.warnings, fmt::format("{} (on {})", warning, card.workers.at(0).host));
    if (card.code == 0 || joined.code != 0) continue;
    joined.code = card.code;
    joined.problem = fmt::format("{} (on {})", card.problem, card.workers.at(0).host);
  }
  if (joined.code != 0) return joined;
  if (joined.secret.empty() && texts.size() > 1 && !options.dry_run)
    joined.secret = read_secret(joined.directory);

  joined.plan_options = {.program = program_kind(options),
                         .gpus_per_worker = options.gpus_per_worker > 0 ? options.gpus_per_worker
                                                                        : context.gpus_per_worker,
                         .backend = options.backend,
                         .elastic = context.elastic};
  try {
    joined.plan = make_plan(std::move(workers), joined.plan_options);
  } catch (const Error& error) {
    joined.problem = error.what();  // the same for all agents: one of them says it
    joined.code = kExitCannotStart;
    return joined;
  }
  // In an elastic run any worker may come to be rank 0.
  if (joined.plan.ranks[0].task != context.task && !context.elastic) joined.master_port.release();
  return joined;
}

}  // namespace af
