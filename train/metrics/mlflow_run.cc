// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/mlflow_run.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "common/atomic_file.h"
#include "common/error.h"

namespace af::train {
namespace {

using nlohmann::json;
using Kind = MlflowAnswer::Kind;

constexpr const char* kMark = "af.mark";
constexpr int kMostSaid = 5;

std::string new_mark() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
}

}  // namespace

MlflowRun::MlflowRun(MlflowOptions options, std::function<void(const std::string&)> say)
    : options_(std::move(options)), say_(std::move(say)), client_(options_) {
  run_id_ = options_.run_id;
  if (run_id_.empty()) recall();
}

// run.json: {"tracking_uri", "mark", "run_id", "" as long as no answer told it}.
void MlflowRun::recall() {
  try {
    const json known = json::parse(read_file(options_.spool / "run.json"));
    if (known.at("tracking_uri") != without_credentials(options_.tracking_uri)) return;
    mark_ = known.at("mark").get<std::string>();
    run_id_ = known.at("run_id").get<std::string>();
    maybe_made_ = true;
  } catch (const std::exception&) {  // not there yet, or not readable: a new run
  }
}

void MlflowRun::remember() const {
  try {
    write_file_atomically(options_.spool / "run.json",
                          json({{"tracking_uri", without_credentials(options_.tracking_uri)},
                                {"mark", mark_},
                                {"run_id", run_id_}})
                                  .dump() +
                              "\n");
  } catch (const Error&) {  // the spool's directory cannot be written, which is said elsewhere
  }
}

MlflowAnswer MlflowRun::find() {
  MlflowAnswer experiment;
  experiment.kind = Kind::done;
  experiment.value = options_.experiment_id;
  if (experiment.value.empty()) experiment = client_.find_experiment(options_.experiment);
  return experiment.done() ? find_again_or_create(experiment.value) : experiment;
}

// A run may have been made though its answer did not come, even to a process before this one.
MlflowAnswer MlflowRun::find_again_or_create(const std::string& experiment_id) {
  MlflowAnswer run;
  run.kind = Kind::missing;
  if (maybe_made_) run = client_.find_run(experiment_id, kMark, mark_);
  if (run.kind == Kind::missing) {
    if (mark_.empty()) mark_ = new_mark();
    remember();
    auto tags = options_.tags;
    tags[kMark] = mark_;
    run = client_.create_run(experiment_id, options_.run_name, tags);
    maybe_made_ = true;
  }
  if (run.done()) {
    run_id_ = run.value;
    remember();
  }
  return run;
}

MlflowAnswer MlflowRun::send(SpoolFile& spool) {
  if (run_id_.empty()) {
    const MlflowAnswer found = find();
    if (!found.done()) return found;
  }
  for (;;) {
    const SpoolFile::Chunk chunk = spool.peek();
    std::size_t at = 0;
    while (at < chunk.items.size()) {
      const std::vector<MlflowItem> left(chunk.items.begin() + static_cast<std::ptrdiff_t>(at),
                                         chunk.items.end());
      const std::size_t count = batch_size(left);
      const MlflowAnswer answer =
          send_items({left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count)});
      if (!answer.done()) return answer;
      at += count;
      spool.sent(chunk.ends[at - 1]);
    }
    if (chunk.items.empty()) break;
  }
  MlflowAnswer all;
  all.kind = Kind::done;
  return all;
}

MlflowAnswer MlflowRun::send_items(const std::vector<MlflowItem>& items) {
  const MlflowAnswer answer = items.front().kind == MlflowItem::Kind::status
                                  ? client_.set_status(run_id_, items.front())
                                  : client_.log_batch(run_id_, items);
  if (answer.kind != Kind::refused) return answer;
  // A run that was deleted there refuses everything: nothing may be left out for that.
  const MlflowAnswer active = client_.check_run(run_id_);
  return active.done() ? halve(items, answer) : active;
}

// A batch that is refused is halved until what it is about is found, and left out.
MlflowAnswer MlflowRun::halve(const std::vector<MlflowItem>& items, const MlflowAnswer& refusal) {
  MlflowAnswer done;
  done.kind = Kind::done;
  if (items.size() == 1) {
    leave_out(items.front(), refusal.why);
    return done;
  }
  const auto middle = items.begin() + static_cast<std::ptrdiff_t>(items.size() / 2);
  for (const auto& part : {std::vector(items.begin(), middle), std::vector(middle, items.end())}) {
    MlflowAnswer answer = client_.log_batch(run_id_, part);
    if (answer.kind == Kind::refused) answer = halve(part, answer);
    if (!answer.done()) return answer;
  }
  return done;
}

void MlflowRun::leave_out(const MlflowItem& item, const std::string& why) {
  if (++left_out_ > kMostSaid) return;
  say_(fmt::format("does not take {}: {}{}",
                   item.key.empty() ? "the run's status " + item.text : item.key, why,
                   left_out_ == kMostSaid ? "; further ones are not said" : ""));
}

}  // namespace af::train
