// SPDX-License-Identifier: Apache-2.0
// What an elastic run does when GPUs come and go, as far as it is a decision: pure functions over
// plain values, with the caller's clock (any, in seconds).
#pragma once

#include <optional>
#include <string>

#include "launcher/world_outcome.h"

namespace af {

// --- Growing: workers wait to join a world that runs.

struct GrowthQuestion {
  double now = 0;
  int size = 1;          // ranks of the world
  int joining = 0;       // workers that could join at once
  bool warm = false;     // all ranks are clients: nothing is restarted
  double run_since = 0;  // the first world of this attempt began
  double world_since = 0;
  std::optional<double> checkpoint_at;  // the newest of this attempt
  std::optional<double> last_growth;
  double last_joined = 0;       // the latest worker came
  double restart_seconds = 10;  // from ending the ranks to their first step; measured if known
  double min_interval = 30;  // between two growths; of a warm world kWarmInterval if that is less
};

struct GrowthAnswer {
  bool grow = false;
  // If not: when to ask again at the latest (an event may come earlier); 0: only an event helps.
  double ask_after = 0;
  const char* why = "";  // for the log of decisions and for tests
};

// Warm worlds take joiners in behind the next checkpoint, so all that counts is not to do it too
// often. Cold ones are restarted: only within kFreshSeconds of a checkpoint, or at the beginning,
// and only if what the new ranks will add outweighs the pause. How long the run still goes nobody
// knows; the best guess is that it goes on as long as it has been going.
inline constexpr double kWarmInterval = 5;
inline constexpr double kFreshSeconds = 2;
inline constexpr double kBeginningSeconds = 30;
inline constexpr double kLeastRemaining = 60;
// At the beginning a cold world waits until no more workers come, and until its program has had
// time to say that it is a client.
inline constexpr double kComingSeconds = 2, kUnknownSeconds = 5;
GrowthAnswer decide_growth(const GrowthQuestion& question);

// --- Why did a rank end?

enum class EndCause {
  kFinished,  // exit code 0
  kLost,      // killed from outside, or of its peers' loss: the run goes on without it
  kOwnFault,  // an exit code, or a fault of the program (SEGV, ABRT, …)
};
// `loss_nearby`: another worker was lost at about the same time, and programs on plain
// torch.distributed fail of that.
EndCause judge_end(const RankEnd& end, bool loss_nearby);

// --- Restarting: worlds that end again and again without progress are given up.

struct RestartQuestion {
  EndCause cause = EndCause::kLost;
  int own_faults = 0;    // of the program so far, this one included
  int max_failures = 0;  // that the client allows
  int fruitless = 0;     // restarts in a row without a checkpoint or report between, this included
};
inline constexpr int kMostFruitless = 3;
struct RestartAnswer {
  bool restart = false;
  const char* why = "";
};
RestartAnswer decide_restart(const RestartQuestion& question);

}  // namespace af
