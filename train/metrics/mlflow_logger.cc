// SPDX-License-Identifier: Apache-2.0
#include "af/train/mlflow_logger.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "common/error.h"
#include "train/metrics/mlflow_sender.h"

namespace af::train {
namespace {

using Kind = MlflowItem::Kind;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

int64_t now_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

MlflowItem status(const char* text) {
  MlflowItem item;
  item.kind = Kind::status;
  item.text = text;
  item.time = now_ms();
  return item;
}

class MlflowLogger : public Callback {
 public:
  explicit MlflowLogger(MlflowOptions options) : options_(std::move(options)) {}

  std::string name() const override { return "MLflow"; }
  void on_start(const StartInfo& info) override { take_rank(info.rank); }
  void on_world_change(const WorldChangeInfo& info) override { take_rank(info.rank); }

  void on_report(const ReportInfo& info) override {
    if (!sender_) return;
    std::vector<MlflowItem> items;
    for (const auto& [key, value] : info.metrics)
      items.push_back({Kind::metric, mlflow_key(key), "", value, now_ms(), info.step});
    sender_->push(std::move(items));
  }

  void on_end(const EndInfo& info) override {
    if (info.how == EndInfo::How::finished) push(status("FINISHED"));
    sender_.reset();
  }
  void on_exception(const std::string&) override {
    push(status("FAILED"));
    sender_.reset();
  }

 private:
  void take_rank(int rank) {
    if (rank != 0) {
      sender_.reset();
      return;
    }
    if (sender_) return;
    sender_ = std::make_unique<MlflowSender>(options_);
    std::vector<MlflowItem> items = {
        status("RUNNING")};  // a run that goes on may have ended before
    for (const auto& [key, value] : options_.params)
      items.push_back({Kind::param, mlflow_key(key), value});
    for (const auto& [key, value] : options_.tags)
      items.push_back({Kind::tag, mlflow_key(key), value});
    sender_->push(std::move(items));
  }
  void push(MlflowItem item) {
    if (sender_) sender_->push({std::move(item)});
  }

  MlflowOptions options_;
  std::unique_ptr<MlflowSender> sender_;
};

// Without af-launch no other start of a program belongs to this one.
std::filesystem::path spool_of_this_process() {
  return std::filesystem::path("mlflow-spool") / fmt::format("{}-{}", now_ms() / 1000, ::getpid());
}

}  // namespace

MlflowOptions mlflow_options_from_environment() {
  MlflowOptions options;
  options.tracking_uri = variable("MLFLOW_TRACKING_URI");
  options.run_id = variable("MLFLOW_RUN_ID");
  options.experiment_id = variable("MLFLOW_EXPERIMENT_ID");
  if (const auto name = variable("MLFLOW_EXPERIMENT_NAME"); !name.empty())
    options.experiment = name;
  options.run_name = variable("MLFLOW_RUN_NAME");
  if (options.run_name.empty()) options.run_name = variable("AF_RUN_ID");
  options.token = variable("MLFLOW_TRACKING_TOKEN");
  options.username = variable("MLFLOW_TRACKING_USERNAME");
  options.password = variable("MLFLOW_TRACKING_PASSWORD");
  options.ca_file = variable("MLFLOW_TRACKING_SERVER_CERT_PATH");
  const auto insecure = variable("MLFLOW_TRACKING_INSECURE_TLS");
  options.insecure_tls = insecure == "true" || insecure == "1";
  const auto run_directory = variable("AF_RUN_DIR");
  options.spool = run_directory.empty() ? spool_of_this_process()
                                        : std::filesystem::path(run_directory) / "mlflow";
  if (const auto user = variable("USER"); !user.empty()) options.tags["mlflow.user"] = user;
  if (const auto run = variable("AF_RUN_ID"); !run.empty()) options.tags["af.run"] = run;
  if (const auto job = variable("SLURM_JOB_ID"); !job.empty()) options.tags["slurm.job"] = job;
  return options;
}

std::shared_ptr<Callback> mlflow_logger(MlflowOptions options) {
  return std::make_shared<MlflowLogger>(std::move(options));
}

std::shared_ptr<Callback> mlflow_logger_from_environment() {
  if (variable("MLFLOW_TRACKING_URI").empty()) return nullptr;
  return mlflow_logger(mlflow_options_from_environment());
}

}  // namespace af::train
