// SPDX-License-Identifier: Apache-2.0
#include "spank/submission.h"

#include <algorithm>

#include "common/error.h"
#include "spank/command_line.h"

namespace af::spank {
namespace {

// Options that mean something for a step inside an allocation, which has its partition, its
// account and its nodes already.
bool is_for_step(const SlurmOption& option) {
  static const std::vector<std::string> kNames = {"ntasks", "gpus-per-task", "cpus-per-task",
                                                  "mem-per-gpu", "gpu-bind"};
  return std::ranges::find(kNames, option.name) != kNames.end();
}

// As the person writes it: Slurm shows --gres=gpu:1 as "gres:gpu:1" and --mem=0 as "0?".
std::string as_typed(std::string value) {
  if (value.starts_with("gres:")) value.erase(0, 5);
  if (value.ends_with('?')) value.pop_back();
  return value;
}

}  // namespace

void Submission::add(SettingId id, const char* text, Source source) {
  // Slurm gives a flag's argument as NULL, "" or "(null)", by the way it came.
  const std::string value = text && std::string_view(text) != "(null)" ? text : "";
  given_.push_back({id, value, source});
  work_out_early();
}

void Submission::make_satellite() {
  satellite_ = true;
  work_out_early();
}

void Submission::work_out_early() {
  if (!uses_af()) return;
  try {
    work_out(Ahead::kYes);
  } catch (const Error&) {
    if (writer_) writer_->withdraw();
  }
}

bool Submission::uses_af() const {
  return satellite_ || std::ranges::any_of(given_, [](const GivenSetting& given) {
           return given.source != Source::kEnvironment || given.id == SettingId::kMaxWorkers ||
                  given.id == SettingId::kNWorkers;
         });
}

Decision Submission::decide() {
  if (!arguments_.mistakes.empty()) throw Error(arguments_.mistakes.front());
  return work_out(Ahead::kNo);
}

Decision Submission::work_out(Ahead ahead) {
  if (!site().enabled) throw Error(disabled_message(site()));
  Decision decision;
  decision.settings = resolve_settings(given_, site().limits);
  decision.settings.satellite = satellite_;
  decision.native = native_options(ahead);
  decision.request = build_request(decision.settings, site(), decision.native);
  if (in_job_ && tool_ == Tool::kSrun) {
    std::erase_if(decision.request.options,
                  [](const SlurmOption& option) { return !is_for_step(option); });
  }
  writer_->write(decision.request.options);
  return decision;
}

NativeOptions Submission::native_options(Ahead ahead) {
  const auto interest = native_options_of_interest();
  std::vector<std::string> names(interest.begin(), interest.end());
  const Site& here = site();
  names.insert(names.end(), here.refused_options.begin(), here.refused_options.end());

  SlurmOptions& options = slurm();  // makes the writer
  NativeOptions native;
  native.tool = tool_;
  for (const auto& [name, value] : writer_->persons_options(names)) {
    native.set[name] = as_typed(value);
  }
  if (ahead == Ahead::kNo) return native;
  // Options that follow ours on the line are not set yet. They must be known now: with --mem after
  // our --mem-per-gpu, Slurm would stop with "mutually exclusive" before we can say it in words.
  const CommandLine line = parse_command_line(own_command_line(), options.syntax());
  for (const GivenOption& option : line.options) {
    if (std::ranges::find(names, option.name) != names.end()) {
      native.set[option.name] = option.value;
    }
  }
  return native;
}

const std::vector<std::filesystem::path>& site_files() {
  static const std::vector<std::filesystem::path> files = {"/etc/af/af.yaml", "/etc/slurm/af.yaml"};
  return files;
}

const Site& Submission::site() {
  if (!site_) {
    site_ = load_site(find_site_file(arguments_.config, nullptr, site_files()));
  }
  return *site_;
}

SlurmOptions& Submission::slurm() {
  if (slurm_) return *slurm_;
  std::string missing;
  slurm_ = find_slurm_options(&missing);
  if (!slurm_) {
    throw Error::format(
        "this Slurm does not export '{}', through which af changes the request: --af-* options do "
        "not work here; tell the administrators",
        missing);
  }
  writer_ = std::make_unique<RequestWriter>(*slurm_);
  if (in_job_ && tool_ == Tool::kSrun) writer_->ignore_environment();
  return *slurm_;
}

}  // namespace af::spank
