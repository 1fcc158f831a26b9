// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm_commands.h"

#include <asio/post.hpp>

#include "common/error.h"
#include "launcher/exit_codes.h"
#include "launcher/satellite_name.h"
#include "launcher/satellite_reconcile.h"

namespace af {
namespace {

// A controller that is down keeps squeue for 18 s, sbatch and scancel for 9 s (Slurm 22.05).
constexpr double kLimit = 30;

class Commands : public SlurmCommands {
 public:
  Commands(asio::io_context& io, const Environment& inherited)
      : io_(io), environment_(slurm_environment(inherited)) {}

  void submit(const SubmissionCommand& submission, OnEnd on_end) override {
    start({.argv = submission.argv,
           .environment = submission.environment,
           .input = submission.script,
           .limit = kLimit},
          std::move(on_end));
  }

  // With --me and one name Slurm sends the jobs of one user; other forms load the whole queue.
  void look_up(const std::string& name, OnEnd on_end) override {
    start({.argv = {"squeue", "--me", "--noheader", "--name=" + name, "--states=all",
                    std::string("--format=") + kQueueFormat},
           .environment = environment_,
           .limit = kLimit},
          std::move(on_end));
  }

  void cancel(const std::string& name, const std::vector<std::string>& jobs, bool pending_only,
              OnEnd on_end) override {
    ChildRequest request = {.argv = {"scancel", "--me", "--name=" + name},
                            .environment = environment_,
                            .limit = kLimit};
    if (pending_only) request.argv.emplace_back("--state=PENDING");
    request.argv.insert(request.argv.end(), jobs.begin(), jobs.end());
    start(std::move(request), std::move(on_end));
  }

  void abandon() override {
    if (running_) running_->abandon();
    running_.reset();
  }

 private:
  void start(ChildRequest request, OnEnd on_end) {
    try {
      running_ = ChildCommand::start(io_, std::move(request), on_end);
    } catch (const Error& error) {
      // No memory or no descriptors now: as if Slurm had not answered.
      ChildResult result;
      result.code = kExitCannotStart;
      result.err = std::string(error.what()) + " (timed out)";
      asio::post(io_, [on_end, result] { on_end(result); });
    }
  }

  asio::io_context& io_;
  Environment environment_;
  std::shared_ptr<ChildCommand> running_;
};

}  // namespace

std::unique_ptr<SlurmCommands> slurm_commands(asio::io_context& io, const Environment& inherited) {
  return std::make_unique<Commands>(io, inherited);
}

}  // namespace af
