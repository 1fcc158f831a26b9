// SPDX-License-Identifier: Apache-2.0
#include "launcher/elasticity.h"

#include <algorithm>
#include <csignal>

namespace af {

GrowthAnswer decide_growth(const GrowthQuestion& q) {
  if (q.joining <= 0) return {.grow = false, .ask_after = 0, .why = "nobody waits"};
  const double interval = q.warm ? std::min(q.min_interval, kWarmInterval) : q.min_interval;
  if (q.last_growth && q.now - *q.last_growth < interval)
    return {
        .grow = false, .ask_after = *q.last_growth + interval - q.now, .why = "grown a moment ago"};
  if (q.warm) return {.grow = true, .ask_after = 0, .why = "joining costs next to nothing"};

  double lost_work = 0;
  if (q.checkpoint_at && *q.checkpoint_at >= q.world_since) {
    lost_work = q.now - *q.checkpoint_at;
    if (lost_work > kFreshSeconds)
      return {.grow = false, .ask_after = 0, .why = "waits for the next checkpoint"};
  } else {
    // This world has made none: what it has done since it began would be lost.
    lost_work = q.now - q.world_since;
    if (q.checkpoint_at || lost_work > kBeginningSeconds)
      return {.grow = false, .ask_after = 0, .why = "waits for the next checkpoint"};
    const double ready = std::max(q.world_since + kUnknownSeconds, q.last_joined + kComingSeconds);
    if (q.now < ready) return {.grow = false, .ask_after = ready - q.now, .why = "more may come"};
  }
  const double remaining = std::max(kLeastRemaining, q.now - q.run_since);
  const double gained = remaining * q.joining / (q.size + q.joining);
  if (gained <= q.restart_seconds + lost_work)
    return {.grow = false, .ask_after = 0, .why = "the restart would cost more than it brings"};
  return {.grow = true, .ask_after = 0, .why = "the gain outweighs the restart"};
}

EndCause judge_end(const RankEnd& end, bool loss_nearby) {
  if (end.ok()) return EndCause::kFinished;
  if (end.signal == SIGKILL) return EndCause::kLost;
  return loss_nearby ? EndCause::kLost : EndCause::kOwnFault;
}

RestartAnswer decide_restart(const RestartQuestion& q) {
  if (q.cause == EndCause::kOwnFault && q.own_faults > q.max_failures)
    return {.restart = false, .why = "the program has failed"};
  if (q.fruitless >= kMostFruitless)
    return {.restart = false, .why = "three restarts in a row without progress"};
  return {.restart = true, .why = ""};
}

}  // namespace af
