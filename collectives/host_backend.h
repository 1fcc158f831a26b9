// SPDX-License-Identifier: Apache-2.0
// A backend whose operations block a host thread: order, progress thread, broken state, staging.
//
// A derived class implements run(), which executes one operation from beginning to end; run() is
// called by one thread at a time (whichever: the caller or the progress thread), in order of
// submission. It throws CommunicatorError; that breaks the backend, and run() is not called again.
#pragma once

#include <memory>

#include "collectives/backend.h"
#include "collectives/device_staging.h"
#include "collectives/executor.h"

namespace af {

class HostBackend : public Backend {
 public:
  // Operations up to this many bytes (the larger of input and output) run on the caller, because
  // handing over to a thread costs more than they take.
  static constexpr std::size_t kInlineBytes = 64 * 1024;

  explicit HostBackend(const Options& options);
  ~HostBackend() override;

  std::vector<std::shared_ptr<WorkState>> submit(std::span<const Operation> operations,
                                                 bool grouped) final;
  std::shared_ptr<Memory> allocate(std::size_t bytes) final;
  void abort(const std::string& reason) noexcept final;

 protected:
  // Executes one operation; all pointers are host memory.
  virtual void run(const Operation& operation) = 0;
  // Default: page-aligned ordinary memory. Called like run(), never beside it.
  virtual std::shared_ptr<Memory> do_allocate(std::size_t bytes);
  // Makes a blocked run() throw soon. May be called from any thread, beside run(), repeatedly.
  virtual void interrupt(const std::string& reason) noexcept = 0;
  // The derived destructor's first act: interrupts, joins the progress thread; run() is not called
  // after it. (A base destructor would come too late: the derived members are gone by then.)
  void stop() noexcept;

  Options options_;  // constant after construction

 private:
  std::unique_ptr<DeviceStaging> staging_;  // if Options::device names a GPU
  std::shared_ptr<Executor> executor_;
};

}  // namespace af
