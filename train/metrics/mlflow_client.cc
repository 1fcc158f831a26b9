// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/mlflow_client.h"

#include <nlohmann/json.hpp>

#include "common/error.h"

namespace af::train {
namespace {

using nlohmann::json;
using Kind = MlflowAnswer::Kind;

json parse(const std::string& text) {
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string text_at(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string()
             ? found->get<std::string>()
             : "";
}

// The id within an answer, which is done only if it is there.
MlflowAnswer with_id(MlflowAnswer answer, const json& object, const char* key) {
  if (!answer.done()) return answer;
  answer.value = text_at(object, key);
  if (answer.value.empty()) {
    answer.kind = Kind::later;
    answer.why = std::string("its answer has no ") + key;
  }
  return answer;
}

HttpOptions http_options(const MlflowOptions& options) {
  HttpOptions http;
  http.token = options.token;
  http.username = options.username;
  http.password = options.password;
  http.ca_file = options.ca_file;
  http.insecure_tls = options.insecure_tls;
  http.connect_timeout = options.connect_timeout;
  http.timeout = options.request_timeout;
  return http;
}

std::string api_of(std::string uri) {
  if (!uri.starts_with("http://") && !uri.starts_with("https://"))
    throw Error::format(
        "MLFLOW_TRACKING_URI={}: not http:// or https://, so nothing goes to MLflow (start "
        "`mlflow server` for a file or a database)",
        without_credentials(uri));
  while (uri.ends_with('/')) uri.pop_back();
  return uri + "/api/2.0/mlflow/";
}

}  // namespace

std::string without_credentials(const std::string& uri) {
  const auto scheme = uri.find("://");
  if (scheme == std::string::npos) return uri;
  const auto host = scheme + 3;
  const auto at = uri.substr(host, uri.find('/', host) - host).rfind('@');
  return at == std::string::npos ? uri : uri.substr(0, host) + uri.substr(host + at + 1);
}

MlflowAnswer meaning_of(const HttpReply& reply) {
  MlflowAnswer answer;
  answer.wait = reply.retry_after;
  if (reply.status == 0) {
    answer.why = reply.error;
    return answer;
  }
  const json body = parse(reply.body);
  const std::string code = text_at(body, "error_code");
  if (reply.status >= 200 && reply.status < 300) {
    answer.kind = body.is_object() ? Kind::done : Kind::later;
    if (!answer.done()) answer.why = "answers, but not as MLflow does: is the URI right?";
    return answer;
  }
  answer.why = "HTTP " + std::to_string(reply.status);
  if (!code.empty()) answer.why += " " + code;
  const std::string message = text_at(body, "message");
  if (!message.empty()) answer.why += ": " + message.substr(0, message.find('\n')).substr(0, 300);
  if (reply.status == 401 || reply.status == 403) {
    answer.why += ": check MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD";
    return answer;  // a token can be renewed, and a permission be given
  }
  // Redirections too: to a login page, say.
  const bool may_pass = reply.status < 400 || reply.status == 408 || reply.status == 425 ||
                        reply.status == 429 || reply.status >= 500;
  if (may_pass) return answer;
  // A 404 without MLflow's code is another server's, or a proxy's.
  if (reply.status == 404) {
    answer.kind = code == "RESOURCE_DOES_NOT_EXIST" ? Kind::missing : Kind::later;
    return answer;
  }
  answer.kind = Kind::refused;
  return answer;
}

MlflowClient::MlflowClient(const MlflowOptions& options)
    : api_(api_of(options.tracking_uri)), http_(http_options(options)) {}

MlflowAnswer MlflowClient::post(const std::string& call, const std::string& body,
                                std::string* reply) {
  const HttpReply got = http_.post(api_ + call, body);
  if (reply != nullptr) *reply = got.body;
  return meaning_of(got);
}

MlflowAnswer MlflowClient::find_experiment(const std::string& name) {
  for (int attempt = 0;; ++attempt) {
    const HttpReply got =
        http_.get(api_ + "experiments/get-by-name?experiment_name=" + HttpClient::escaped(name));
    MlflowAnswer found = meaning_of(got);
    if (found.done()) {
      const json experiment = parse(got.body).value("experiment", json::object());
      if (text_at(experiment, "lifecycle_stage") == "deleted") {
        found.kind = Kind::refused;
        found.why = "the experiment " + name + " is deleted there: restore it, or take another";
        return found;
      }
      return with_id(found, experiment, "experiment_id");
    }
    if (found.kind != Kind::missing) return found;
    std::string reply;
    const MlflowAnswer made = post("experiments/create", dumped({{"name", name}}), &reply);
    if (made.done()) return with_id(made, parse(reply), "experiment_id");
    // Another process was faster.
    const bool there = text_at(parse(reply), "error_code") == "RESOURCE_ALREADY_EXISTS";
    if (!there || attempt > 0) return made;
  }
}

MlflowAnswer MlflowClient::find_run(const std::string& experiment_id, const std::string& tag,
                                    const std::string& value) {
  std::string reply;
  MlflowAnswer found = post("runs/search",
                            dumped({{"experiment_ids", json::array({experiment_id})},
                                    {"filter", "tags.`" + tag + "` = '" + value + "'"},
                                    {"max_results", 1}}),
                            &reply);
  if (!found.done()) return found;
  const json runs = parse(reply).value("runs", json::array());
  if (!runs.is_array() || runs.empty()) {
    found.kind = Kind::missing;
    found.why = "no such run";
    return found;
  }
  return with_id(found, runs[0].value("info", json::object()), "run_id");
}

MlflowAnswer MlflowClient::create_run(const std::string& experiment_id, const std::string& name,
                                      const std::map<std::string, std::string>& tags) {
  json body = {{"experiment_id", experiment_id}, {"tags", json::array()}};
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  body["start_time"] = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  if (!name.empty()) body["run_name"] = name;
  for (const auto& [key, value] : tags) body["tags"].push_back({{"key", key}, {"value", value}});
  const HttpReply got = http_.post_once(api_ + "runs/create", dumped(body));
  const MlflowAnswer made = meaning_of(got);
  if (!made.done()) return made;
  const json run = parse(got.body).value("run", json::object());
  return with_id(made, run.value("info", json::object()), "run_id");
}

MlflowAnswer MlflowClient::check_run(const std::string& run_id) {
  const HttpReply got = http_.get(api_ + "runs/get?run_id=" + HttpClient::escaped(run_id));
  MlflowAnswer answer = meaning_of(got);
  if (!answer.done()) return answer;
  const json run = parse(got.body).value("run", json::object());
  if (text_at(run.value("info", json::object()), "lifecycle_stage") == "deleted") {
    answer.kind = Kind::missing;
    answer.why = "the run " + run_id + " is deleted there";
  }
  return answer;
}

MlflowAnswer MlflowClient::log_batch(const std::string& run_id,
                                     const std::vector<MlflowItem>& items) {
  return post("runs/log-batch", log_batch_body(run_id, items));
}

MlflowAnswer MlflowClient::set_status(const std::string& run_id, const MlflowItem& status) {
  json body = {{"run_id", run_id}, {"status", status.text}};
  if (status.text != "RUNNING") body["end_time"] = status.time;
  return post("runs/update", dumped(body));
}

}  // namespace af::train
