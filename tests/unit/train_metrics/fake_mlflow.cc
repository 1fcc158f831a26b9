// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/train_metrics/fake_mlflow.h"

namespace af::test {

HttpResponse FakeMlflow::answer(const HttpRequest& request) {
  const std::lock_guard lock(mutex_);
  HttpResponse response;
  if (failures_.empty()) {
    response = carry_out(request);
  } else {
    const Failure failure = failures_.front();
    failures_.pop_front();
    if (failure.after) carry_out(request);
    response = failure.response;
  }
  requests_.push_back(request);
  came_.notify_all();
  return response;
}

HttpResponse FakeMlflow::carry_out(const HttpRequest& request) {
  const std::string prefix = "/api/2.0/mlflow/";
  if (!request.target.starts_with(prefix)) return {404, "no such page"};
  const auto question = request.target.find('?');
  const std::string call = request.target.substr(prefix.size(), question - prefix.size());
  const std::string value =
      question == std::string::npos ? "" : request.target.substr(request.target.find('=') + 1);
  const json body = request.body.empty() ? json::object() : json::parse(request.body);

  if (call == "experiments/get-by-name") {
    if (!experiments_.contains(value))
      return refusal(404, "RESOURCE_DOES_NOT_EXIST", "Could not find experiment");
    return {200, json({{"experiment", {{"experiment_id", "e-" + value}}}}).dump()};
  }
  if (call == "experiments/create") {
    const auto name = body["name"].get<std::string>();
    if (!experiments_.insert(name).second) return refusal(400, "RESOURCE_ALREADY_EXISTS", "there");
    return {200, json({{"experiment_id", "e-" + name}}).dump()};
  }
  if (call == "runs/create") {
    Run run;
    run.id = "run-" + std::to_string(runs_.size());
    run.experiment = body["experiment_id"];
    for (const json& tag : body["tags"]) run.tags[tag["key"]] = tag["value"];
    runs_.push_back(run);
    return {200, json({{"run", {{"info", {{"run_id", run.id}}}}}}).dump()};
  }
  if (call == "runs/search") {
    json found = json::array();
    for (const Run& run : runs_)
      for (const auto& [key, tag] : run.tags)
        if (body["filter"] == "tags.`" + key + "` = '" + tag + "'")
          found.push_back({{"info", {{"run_id", run.id}}}});
    return {200, found.empty() ? "{}" : json({{"runs", found}}).dump()};
  }
  Run* run = find(call == "runs/get" ? value : body["run_id"].get<std::string>());
  if (run == nullptr) return refusal(404, "RESOURCE_DOES_NOT_EXIST", "Run not found");
  if (call == "runs/get")
    return {200, json({{"run", {{"info", {{"lifecycle_stage", run->stage}}}}}}).dump()};
  if (run->stage != "active")
    return refusal(400, "INVALID_PARAMETER_VALUE", "The run must be in the 'active' state");
  if (call == "runs/update") {
    run->status = body["status"];
    return {};
  }
  return call == "runs/log-batch" ? log(*run, body) : HttpResponse{404, "no such call"};
}

HttpResponse FakeMlflow::log(Run& run, const json& body) {
  for (const json& metric : body.value("metrics", json::array()))
    if (metric["key"] == refused_)
      return refusal(400, "INVALID_PARAMETER_VALUE", "Invalid value for " + refused_);
  for (const json& param : body.value("params", json::array())) {
    const auto key = param["key"].get<std::string>();
    if (run.params.contains(key) && run.params[key] != param["value"])
      return refusal(400, "INVALID_PARAMETER_VALUE", "Changing param values is not allowed");
  }
  for (const json& metric : body.value("metrics", json::array()))
    if (run.known.insert(metric.dump()).second) run.metrics.push_back(metric);
  for (const json& param : body.value("params", json::array()))
    run.params[param["key"]] = param["value"];
  for (const json& tag : body.value("tags", json::array())) run.tags[tag["key"]] = tag["value"];
  return {};
}

}  // namespace af::test
