// SPDX-License-Identifier: Apache-2.0
// Where the time of a few chosen steps goes, as a file for chrome://tracing or ui.perfetto.dev: the
// spans of af/train/trace.h. One file a rank; opened together they lie on one time axis, as well as
// the hosts' clocks agree.
//
//   callbacks.add(af::train::Profile::from_environment());   // AF_PROFILE_STEPS=100-102
//
// Steps that are not chosen cost a comparison each. What it cannot write it says in a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "af/export.h"
#include "af/train/callback.h"

namespace af::train {

struct ProfiledSteps {
  int64_t first = 0;  // numbered as StepInfo::step: from 1, over the whole training
  int64_t last = 0;   // included
  bool operator==(const ProfiledSteps&) const = default;
};

// "100-102,5000": in rising order, without overlap. Throws af::Error for another text.
AF_PUBLIC std::vector<ProfiledSteps> parse_profiled_steps(const std::string& text);

// Use from one thread.
class AF_PUBLIC Profile : public Callback {
 public:
  // Writes DIRECTORY/steps-FIRST-LAST-rank-RANK.json when the last step is complete, or earlier if
  // the training ends or the world changes: with what there is until then.
  Profile(std::filesystem::path directory, std::vector<ProfiledSteps> steps);
  // Steps of AF_PROFILE_STEPS, nothing if it is not set. In AF_PROFILE_DIR; else
  // AF_RUN_DIR/profile; else "profile". Throws af::Error.
  static std::shared_ptr<Profile> from_environment();
  ~Profile() override;

  std::string name() const override { return "Profile"; }
  void on_start(const StartInfo& info) override;
  void on_step(const StepInfo& info) override;
  void on_world_change(const WorldChangeInfo& info) override;
  void on_end(const EndInfo& info) override;
  void on_exception(const std::string& what) override;

 private:
  const ProfiledSteps* range_of(int64_t step) const;
  void begin_if_chosen(int64_t step);
  void write(int64_t last);

  std::filesystem::path directory_;
  std::vector<ProfiledSteps> steps_;
  int rank_ = 0;
  int64_t first_ = 0;       // of the file that is recorded now; 0: none
  int64_t step_began_ = 0;  // trace_now()
};

}  // namespace af::train
