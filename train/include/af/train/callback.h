// SPDX-License-Identifier: Apache-2.0
// What a program wants to do at the turns of a training: log, measure, stop early.
//
//   class PrintLoss : public af::train::Callback {
//     void on_step(const af::train::StepInfo& step) override {
//       if (step.step % 100 == 0) printf("%ld %.4f\n", step.step, step.loss);
//     }
//   };
//   af::train::Callbacks callbacks;
//   callbacks.add(std::make_shared<PrintLoss>());
//   callbacks.add(af::train::mlflow_logger_from_environment());
//
// DataParallel calls them (DataParallelOptions::callbacks); a loop of one's own calls the functions
// of Callbacks itself. They are called on every rank, with the same numbers.
//
// A callback that throws is told in a line and not called any more: it never ends the training.
// One that wants the training to end throws StopTraining; the loop ends where all ranks have agreed
// on it (stop_agreed).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "af/export.h"

namespace af::train {

using Metrics = std::map<std::string, double>;

struct StartInfo {
  int rank = 0;
  int world_size = 1;
  int64_t step = 0;  // completed: more than 0 in a training that goes on
};
struct StepInfo {
  int64_t step = 0;  // completed, this one included
  int64_t epoch = 0;
  int64_t samples = 0;  // over all ranks
  double loss = 0;      // mean over them
};
struct EpochInfo {
  int64_t epoch = 0;  // that is complete
  int64_t step = 0;
};
struct ReportInfo {
  int64_t step = 0;
  int64_t epoch = 0;
  Metrics metrics;
};
struct CheckpointInfo {
  std::string path;  // complete there
  int64_t step = 0;
  double seconds = 0;  // that writing took
};
struct WorldChangeInfo {
  int rank = 0;  // in the new world
  int before = 0;
  int now = 0;
  int64_t step = 0;
};
struct EndInfo {
  enum class How {
    finished,  // also where a callback has ended it early
    leaving,   // of this process only: its job or its GPU ends, the training goes on elsewhere
  };
  How how = How::finished;
  int64_t step = 0;
};

// Thrown by a callback to end the training. `reason`: for a person, "no better loss in 5 reports".
class AF_PUBLIC StopTraining : public std::runtime_error {
 public:
  explicit StopTraining(const std::string& reason) : std::runtime_error(reason) {}
};

// Calls come one at a time. on_checkpoint() may come from the thread that wrote the checkpoint, the
// others from that of the training, whose step waits for them: what takes long belongs on a thread
// of the callback's own.
class AF_PUBLIC Callback {
 public:
  virtual ~Callback();
  // For messages; the class's name by default.
  virtual std::string name() const;

  virtual void on_start(const StartInfo&) {}
  virtual void on_step(const StepInfo&) {}
  virtual void on_epoch(const EpochInfo&) {}
  virtual void on_report(const ReportInfo&) {}
  virtual void on_checkpoint(const CheckpointInfo&) {}
  virtual void on_world_change(const WorldChangeInfo&) {}
  virtual void on_end(const EndInfo&) {}
  // The training ends with an exception, whose text this is. on_end() does not follow.
  virtual void on_exception(const std::string& /*what*/) {}
};

// Thread-safe. Callbacks are called in the order in which they were added.
class AF_PUBLIC Callbacks {
 public:
  Callbacks();
  ~Callbacks();
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;

  // Before start(). A null pointer is nothing.
  void add(std::shared_ptr<Callback> callback);
  bool empty() const;

  void start(const StartInfo& info);
  void step(const StepInfo& info);
  void epoch(const EpochInfo& info);
  void report(const ReportInfo& info);
  void checkpoint(const CheckpointInfo& info);
  void world_change(const WorldChangeInfo& info);
  void end(const EndInfo& info);
  void exception(const std::string& what);

  // Runs the training; an exception that leaves it is told to the callbacks on its way.
  template <typename Training>
  void watch(Training&& training) {
    try {
      training();
    } catch (const std::exception& error) {
      exception(error.what());
      throw;
    }
  }

  // Whether one of this rank has thrown StopTraining, and why ("" if none has).
  bool stop_asked() const;
  std::string stop_reason() const;
  // Whether one of any rank has: the same on all. Collective. `sum` sums its values over all ranks:
  //   callbacks.stop_agreed([&](std::vector<double> mine) {
  //     return replicas.sum([&](int, int) { return mine; });
  //   })
  bool stop_agreed(const std::function<std::vector<double>(std::vector<double>)>& sum) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
