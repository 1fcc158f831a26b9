// SPDX-License-Identifier: Apache-2.0
// A misspelled --af-* option: Slurm's getopt rejects it before any plugin is asked, with "Try
// --help". We add the line with the nearest name.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace af::spank {

// Once options are complete (submission().options_complete), the handler stays silent.
void explain_misspelled_options_at_exit();

// The line to print for a command line (without the command's name) and the batch script's text, ""
// if all --af-* options in them exist or are abbreviations of one that does. Pure.
std::string misspelled_option_message(std::span<const std::string> words, std::string_view script);

}  // namespace af::spank
