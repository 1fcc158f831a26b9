// SPDX-License-Identifier: Apache-2.0
// af: what is asked of Slurm and why, the settings, and checks before one submits.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "cli/commands.h"
#include "common/error.h"
#include "common/nearest_name.h"

namespace {

using af::cli::ExplainArguments;

// Slurm's one-letter forms of what af keeps or refuses.
std::string native_flags(const std::string& name) {
  const std::map<std::string, std::string> letters = {
      {"partition", "-p"}, {"qos", "-q"},     {"account", "-A"}, {"constraint", "-C"},
      {"nodes", "-N"},     {"ntasks", "-n"},  {"gpus", "-G"},    {"cpus-per-task", "-c"},
      {"nodelist", "-w"},  {"exclude", "-x"}, {"time", "-t"},    {"output", "-o"},
      {"error", "-e"},     {"chdir", "-D"},   {"job-name", "-J"}};
  const auto found = letters.find(name);
  return (found == letters.end() ? "" : found->second + ",") + "--" + name;
}

void add_setting_options(CLI::App& app, ExplainArguments& arguments) {
  for (const af::SettingSpec& spec : af::settings_table()) {
    const std::string name = std::string("--") + spec.name;
    const auto keep = [&arguments, id = spec.id](const std::string& text) {
      arguments.settings.push_back({id, text, af::Source::kCommandLine});
    };
    if (spec.type == af::SettingType::kFlag)
      app.add_flag_callback(
          name, [keep] { keep(""); }, spec.help);
    else
      app.add_option_function<std::string>(name, keep, spec.help)
          ->type_name(spec.argument)
          ->take_last()
          ->group("af settings");
  }
}

void add_native_options(CLI::App& app, ExplainArguments& arguments) {
  for (const char* name : af::native_options_of_interest()) {
    const auto keep = [&arguments, name](const std::string& text) {
      arguments.native.set[name] = text;
    };
    if (std::string_view(name) == "exclusive") continue;
    app.add_option_function<std::string>(native_flags(name), keep)
        ->take_last()
        ->group("Slurm's options");
  }
  // As in Slurm, its value only comes behind "=": the next word may be the script.
  app.add_flag("--exclusive{exclusive}", arguments.native.set["exclusive"])
      ->group("Slurm's options");
}

// An unknown word of the line, with what may have been meant.
std::string unknown_message(const CLI::App& app, const std::string& word) {
  if (word.starts_with("--af-")) return af::unknown_setting_message(word);
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!word.starts_with('-'))
      names.push_back(sub->get_name());
    else
      for (const CLI::Option* option : sub->get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return fmt::format("there is no {} {}{}; see af --help",
                     word.starts_with('-') ? "option" : "command", word,
                     af::did_you_mean(word.substr(0, word.find('=')), names));
}

int parse_error(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  std::string message = error.what();
  if (argc < 2) message = "a command is needed: af explain, af settings, af check, af help";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) ||
      dynamic_cast<const CLI::RequiredError*>(&error)) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const auto& extras = app.remaining(true);
      if (std::find(extras.begin(), extras.end(), word) == extras.end()) continue;
      message = unknown_message(app, word);
      break;
    }
  }
  std::fputs(fmt::format("af: {}\n", message).c_str(), stderr);
  return 2;
}

int run(int argc, char** argv) {
  CLI::App app{"af: training on a Slurm cluster's GPUs. Submit with sbatch --af-max-workers=N."};
  app.set_version_flag("--version", std::string("af ") + AF_VERSION);
  app.require_subcommand(1);

  ExplainArguments arguments;
  std::string tool = "sbatch", script;
  bool markdown = false;

  CLI::App* explain = app.add_subcommand("explain", "what would be asked of Slurm, and why");
  explain->add_option("--config", arguments.config, "the site file (default: $AF_CONFIG)");
  explain->add_option("--tool", tool, "the Slurm command")
      ->check(CLI::IsMember({"sbatch", "srun", "salloc"}));
  add_setting_options(*explain, arguments);
  add_native_options(*explain, arguments);
  explain->add_option("script", arguments.trailer, "batch script or program, with its arguments");
  explain->positionals_at_end();

  CLI::App* settings = app.add_subcommand("settings", "all settings, with this site's limits");
  settings->add_option("--config", arguments.config, "the site file (default: $AF_CONFIG)");
  settings->add_flag("--markdown", markdown, "the shipped table, for the documentation");

  CLI::App* check = app.add_subcommand("check", "check the site file and a batch script");
  check->add_option("--config", arguments.config, "the site file (default: $AF_CONFIG)");
  check->add_option("script", script, "a batch script");

  app.add_subcommand("help", "this text");
  // Parsed, "help" would be asked for the help of itself.
  if (argc >= 2 && std::string_view(argv[1]) == "help") {
    std::string text = app.help("af");
    for (const CLI::App* topic : app.get_subcommands([](const CLI::App*) { return true; }))
      if (argc > 2 && topic->get_name() == argv[2]) text = topic->help("af");
    std::fputs(text.c_str(), stdout);
    return 0;
  }

  try {
    app.parse(argc, argv);

  } catch (const CLI::ParseError& error) {
    return parse_error(app, error, argc, argv);
  }
  arguments.tool = tool == "srun"     ? af::Tool::kSrun
                   : tool == "salloc" ? af::Tool::kSalloc
                                      : af::Tool::kSbatch;
  arguments.native.tool = arguments.tool;
  if (arguments.native.get("exclusive").empty()) arguments.native.set.erase("exclusive");
  if (*explain) return af::cli::explain_command(arguments);
  if (*settings) return af::cli::settings_command(arguments.config, markdown);
  return af::cli::check_command(arguments.config, script);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fputs(fmt::format("af: {}\n", error.what()).c_str(), stderr);
    return 2;
  }
}
