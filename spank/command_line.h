// SPDX-License-Identifier: Apache-2.0
// Reads a command line by the rules of getopt_long, without touching getopt's global state, which
// belongs to the command we are a guest in. Pure.
//
// Used for what the option callback cannot know: native options that still come, the batch script's
// name, and misspelled options, which Slurm rejects before it asks us.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace af::spank {

enum class Argument { kNone = 0, kRequired = 1, kOptional = 2 };  // getopt's has_arg

struct LongOption {
  std::string name;
  Argument argument = Argument::kNone;
  int value = 0;  // what getopt_long returns for it
};

struct OptionSyntax {
  std::string short_options;  // "+A:bc:": as getopt takes it
  std::vector<LongOption> long_options;
};

struct GivenOption {
  std::string name;  // the full long name, also of an abbreviation or a short option
  std::string value;
};

struct CommandLine {
  std::vector<GivenOption> options;
  std::vector<std::string> unknown;   // "--af-wokers": names no option, or more than one
  std::vector<std::string> operands;  // from the first one on: script or program, and its arguments
};

// `words` without the command's own name. Options end at the first operand (Slurm's commands use
// the "+" of getopt), at "--", and at ":", which begins the next component of a heterogeneous job.
CommandLine parse_command_line(std::span<const std::string> words, const OptionSyntax& syntax);

// The same without a syntax: a word that follows an option without '=' may be its value or the
// first operand, so the first word after two such words ends the options. Only for help in error
// messages.
std::vector<std::string> likely_options(std::span<const std::string> words);
// The first word that likely_options() takes for an operand; "" if there is none.
std::string likely_operand(std::span<const std::string> words);

// The words of this process's command line, without its name.
std::vector<std::string> own_command_line();

}  // namespace af::spank
