// SPDX-License-Identifier: Apache-2.0
// How many satellites a run asks Slurm for, and when: wanted ones minus pending and running ones.
// Pure: no clock, no process, no Slurm. SatellitePool does what reconcile() says, one command at a
// time, and tells the result.
//
// Rules (docs/design/elastic.md):
//   - What is in doubt is looked up by name before anything else is done. While the controller does
//     not answer, nothing is submitted and nothing is cancelled.
//   - At most two are pending.
//   - The queue is looked at only while something is pending or unexplained: at once after a
//     departure, else every 15 s, doubling to 120 s while nothing changes.
//   - A refusal for good ends the submissions; a limit makes them wait, 60 s to 10 min.
//   - A satellite that dies within 60 s of its start costs its node; three such and the run asks
//     for no more.
#pragma once

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/child_command.h"

namespace af {

inline constexpr double kNever = std::numeric_limits<double>::infinity();
inline constexpr int kMostPending = 2;
inline constexpr int kStrikes = 3;

// --- what Slurm's commands said

struct SubmissionOutcome {
  enum Kind {
    kAccepted,
    kRefused,  // for good: denied, forbidden, no such account, partition, QOS, shape
    kTooLong,  // for the time it asks for
    kLimited,  // not now: a limit of jobs, or a refusal that we do not know
    kUnknown,  // it may or may not have been accepted: no answer in time
  } kind = kUnknown;
  std::string job;        // kAccepted
  std::string text;       // what sbatch said, one line
  double asked = kNever;  // seconds of life that were asked for
};
SubmissionOutcome submission_outcome(const ChildResult& sbatch);

struct QueuedJob {
  std::string job;
  std::string state;   // "PENDING", "RUNNING", "COMPLETED", …
  double seconds = 0;  // that it has run
  std::string node;    // empty: none yet
};
// The arguments of squeue's -o that queue_of() reads.
inline constexpr const char* kQueueFormat = "%A|%T|%M|%N";
// Nothing: squeue has not answered, or not in a way that we understand.
std::optional<std::vector<QueuedJob>> queue_of(const ChildResult& squeue);

// "1-02:03:04", "03:04" as seconds; 0 where it is no time.
double slurm_seconds(const std::string& text);

// --- what the pool knows

struct Satellite {
  enum Phase {
    kQueued,     // pending, as far as we know
    kStarting,   // it runs, and its agent is not here yet
    kJoined,     // its agent is connected
    kLeft,       // its agent has gone; the job may end still
    kCancelled,  // it was pending, and scancel was told so
  } phase = kQueued;
  double since = 0;        // of the phase
  bool joined = false;     // its agent has been here
  bool early = false;      // and left without a reason within 60 s of its start
  bool cancelled = false;  // by us
  std::string node;
};

struct PoolState {
  std::string name;  // of all jobs
  int wanted = 0;
  std::map<std::string, Satellite> satellites;  // by job number
  bool in_doubt = false;                        // nothing but a look-up may be done
  bool silent = false;                          // the controller did not answer the last time
  double look_up_at = kNever;
  double look_up_every = 15;
  double look_again_until = 0;  // a submission without an answer may be accepted late
  double submit_at = 0;         // not before
  double submit_every = 60;
  double cancel_at = 0;     // not before
  double longest = kNever;  // life of a satellite that Slurm may take, in seconds
  bool refused = false;
  int strikes = 0;
  int vanished = 0;  // in a row, jobs that were never seen running
  std::set<std::string> excluded;
  std::set<std::string> said;
};

// For the journal and for the person; either may be empty.
struct PoolReport {
  std::string event;
  nlohmann::json fields;
  std::string text;
};
using PoolReports = std::vector<PoolReport>;

// --- decisions

struct PoolAction {
  enum Kind { kNothing, kLookUp, kSubmit, kCancel } kind = kNothing;
  std::vector<std::string> jobs;  // kCancel
  bool pending_only = true;       // kCancel: not those that have started meanwhile
  double at = kNever;             // kNothing: ask again then, if nothing happens before
};

// `may_submit`: false when the anchor ends so soon that no satellite is worth it.
PoolAction reconcile(const PoolState& state, double now, bool may_submit = true);

// Satellites that are there or on their way.
int satellites_counted(const PoolState& state);

// --- events. Times are seconds of any clock; `jitter` is from 0 to 1, chosen anew each time.
PoolReports on_submission(PoolState& state, const SubmissionOutcome& outcome, double now,
                          double jitter);
PoolReports on_queue(PoolState& state, const std::optional<std::vector<QueuedJob>>& queue,
                     double now, double jitter);
// `done`: scancel has answered.
PoolReports on_cancelled(PoolState& state, const std::vector<std::string>& jobs, bool done,
                         double now);
void on_joined(PoolState& state, const std::string& job, const std::string& node, double now);
// `lifetime`: seconds since the agent joined. `explained`: it had a notice, or was told to go.
PoolReports on_left(PoolState& state, const std::string& job, double lifetime, bool explained,
                    double now);

}  // namespace af
