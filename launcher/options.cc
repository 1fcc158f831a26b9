// SPDX-License-Identifier: Apache-2.0
#include "launcher/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "common/error.h"

namespace af {
namespace {

// Where the program begins: behind "--", or at the first word that is neither an option nor an
// option's value. What follows never meets the parser, so it arrives as it was typed, "--"
// included.
size_t program_index(CLI::App& app, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") return i;
    if (word.size() < 2 || word[0] != '-') return i;
    if (word.find('=') != std::string::npos) continue;
    const CLI::Option* option = app.get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_max() > 0) ++i;
  }
  return arguments.size();
}

std::string nearest_hint(const CLI::App& app, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  std::string best;
  size_t best_distance = 4;
  for (const CLI::Option* option : app.get_options()) {
    const std::string candidate = option->get_name();
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t replace = diagonal + (name[i - 1] != candidate[j - 1]);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replace}));
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best.empty() ? "" : "; did you mean " + best + "?";
}

}  // namespace

ParsedOptions parse_options(const std::vector<std::string>& arguments) {
  Options options;
  std::string program;
  bool version = false;
  CLI::App app(
      "Starts one rank of PROGRAM per worker of the Slurm job, or of this machine outside Slurm,\n"
      "and ends when they have. docs/launcher.md is the manual.",
      "af-launch");
  app.get_formatter()->column_width(34);
  app.set_help_flag("-h,--help", "Show this help");
  app.add_flag("--version", version, "Show the version");
  app.add_option("--workers", options.workers, "Ranks (default: what the job was made for; 1)")
      ->check(CLI::Range(1, 100000));
  app.add_option("--gpus-per-worker", options.gpus_per_worker, "GPUs of each rank (1 or 2)")
      ->check(CLI::Range(1, 2));
  app.add_option("--backend", options.backend, "nccl, local or gloo instead of af's own choice")
      ->check(CLI::IsMember({"nccl", "local", "gloo"}));
  app.add_option("--program", program, "torch (calls torch.distributed itself) or af")
      ->check(CLI::IsMember({"torch", "af"}));
  app.add_option("--bootstrap", options.bootstrap, "How agents find each other: auto, mpi, tcp")
      ->check(CLI::IsMember({"auto", "mpi", "tcp"}));
  app.add_option("--run-dir", options.run_directory,
                 "Directory for logs and events (default: af-runs/<run id>)");
  app.add_option("--grace", options.grace,
                 "Seconds that other ranks have to leave when one has failed (5)")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--save-before", options.save_before,
                 "Seconds before the job's time limit at which ranks are told to save (0: never)")
      ->check(CLI::Range(0.0, 1e7));
  app.add_flag("--dry-run", options.dry_run, "Print the plan and start nothing");
  app.add_flag("--verbose,-v", options.verbose, "Say more on stderr");
  app.add_flag("--agent", options.agent)->group("");
  app.add_option("--front", options.front)->group("");
  app.add_option("--generation", options.generation)->group("");
  app.add_option("--satellites", options.satellites)->group("");
  app.add_option("--join", options.join)->group("");
  app.add_option("--max-workers", options.max_workers)->group("")->check(CLI::Range(1, 100000));
  app.add_option("--grow-interval", options.grow_interval)->group("")->check(CLI::Range(0.0, 1e6));
  app.footer("  PROGRAM [ARGS…]                 Everything from here on is the program's");

  const size_t split = program_index(app, arguments);
  std::vector<std::string> own(arguments.begin(),
                               arguments.begin() + static_cast<std::ptrdiff_t>(split));
  size_t begin = split;
  if (begin < arguments.size() && arguments[begin] == "--") ++begin;
  options.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(begin), arguments.end());
  for (const std::string& word : own) {
    const std::string name = word.substr(0, word.find('='));
    if (name.starts_with("-") && app.get_option_no_throw(name) == nullptr)
      throw Error::format("unknown option '{}'{}", name, nearest_hint(app, word));
  }
  std::reverse(own.begin(), own.end());  // CLI11 takes them from the back
  try {
    app.parse(own);
  } catch (const CLI::CallForHelp&) {
    return {.options = std::nullopt, .text = app.help()};
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    throw Error(text);
  }
  if (version) return {.options = std::nullopt, .text = "af-launch " AF_VERSION "\n"};
  if (!program.empty())
    options.program = program == "torch" ? ProgramKind::kTorch : ProgramKind::kAf;
  if (options.command.empty() && options.join.empty())
    throw Error("no program given: af-launch [OPTIONS] PROGRAM [ARGS…]; --help shows the options");
  return {.options = options, .text = ""};
}

ProgramKind program_kind(const Options& options) {
  if (options.program) return *options.program;
  const std::string& path = options.command.at(0);
  const std::string name = path.substr(path.rfind('/') + 1);
  const bool python = name.starts_with("python") || name.ends_with(".py");
  return python ? ProgramKind::kTorch : ProgramKind::kAf;
}

}  // namespace af
