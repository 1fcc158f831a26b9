// SPDX-License-Identifier: Apache-2.0
#include "spank/request_writer.h"

#include <algorithm>

#include "common/error.h"

namespace af::spank {

bool RequestWriter::still_ours(const std::string& name, const Written& written) const {
  const std::string now = slurm_.get(name);
  // From Slurm 23.11 on, gpus-per-task moves into tres-per-task while options are verified, and
  // reads as empty afterwards. A person cannot set an empty value.
  return now == written.shown || now.empty();
}

std::map<std::string, std::string, std::less<>> RequestWriter::persons_options(
    std::span<const std::string> names) const {
  std::map<std::string, std::string, std::less<>> persons;
  for (const std::string& name : names) {
    const auto written = written_.find(name);
    if (written != written_.end() && still_ours(name, written->second)) {
      if (written->second.had_before) persons[name] = written->second.before;
      continue;
    }
    if (!slurm_.is_set(name)) continue;
    if (ignore_environment_ && slurm_.is_from_environment(name)) continue;
    persons[name] = slurm_.get(name);
  }
  return persons;
}

void RequestWriter::write(std::span<const SlurmOption> options) {
  for (auto entry = written_.begin(); entry != written_.end();) {
    const std::string& name = entry->first;
    const Written& written = entry->second;
    const bool wanted = std::ranges::any_of(options, [&](const SlurmOption& option) {
      return option.name == name && option.value == written.asked;
    });
    if (wanted && still_ours(name, written)) {
      ++entry;
      continue;
    }
    // What the person set over ours stays as it is.
    if (still_ours(name, written)) {
      if (written.had_before) {
        slurm_.set(name, written.before);
      } else {
        slurm_.reset(name);
      }
    }
    entry = written_.erase(entry);
  }
  for (const SlurmOption& option : options) {
    if (written_.contains(option.name)) continue;
    Written written;
    written.asked = option.value;
    written.had_before = slurm_.is_set(option.name) &&
                         !(ignore_environment_ && slurm_.is_from_environment(option.name));
    if (written.had_before) written.before = slurm_.get(option.name);
    if (!slurm_.set(option.name, option.value)) {
      throw Error::format(
          "this Slurm does not take --{}={}, which af needs; tell the administrators", option.name,
          option.value);
    }
    written.shown = slurm_.get(option.name);
    written_[option.name] = written;
  }
}

}  // namespace af::spank
