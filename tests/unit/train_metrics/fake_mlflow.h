// SPDX-License-Identifier: Apache-2.0
// An MLflow server in memory, on the HttpServer: as the real one as far as a logger can see, and it
// fails when it is told to. tests/wheel has the real one.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/train_metrics/http_server.h"

namespace af::test {

class FakeMlflow {
 public:
  struct Run {
    std::string id;
    std::string experiment;
    std::string status = "RUNNING";
    std::string stage = "active";
    std::map<std::string, std::string> tags;
    std::map<std::string, std::string> params;
    std::vector<nlohmann::json> metrics;
    std::set<std::string> known;  // their texts: as in an SQL store, the same one twice is one
  };

  FakeMlflow() { start(); }
  void stop() { server_.reset(); }
  void start() {
    server_ =
        std::make_unique<HttpServer>([this](const HttpRequest& r) { return answer(r); }, port_);
    port_ = server_->port();
  }
  std::string uri() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // The next requests get these, one each; those for which `after` is set are carried out first.
  struct Failure {
    HttpResponse response;
    bool after = false;
  };
  void fail_next(std::vector<Failure> failures) {
    const std::lock_guard lock(mutex_);
    failures_.insert(failures_.end(), failures.begin(), failures.end());
  }
  // A metric of this name makes the server refuse its whole batch.
  void refuse_metric(const std::string& name) {
    const std::lock_guard lock(mutex_);
    refused_ = name;
  }

  std::vector<Run> runs() {
    const std::lock_guard lock(mutex_);
    return runs_;
  }
  std::vector<HttpRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  void delete_run(std::size_t index) {
    const std::lock_guard lock(mutex_);
    runs_.at(index).stage = "deleted";
  }
  // Waits until `count` requests have come; false after 20 s.
  bool await_requests(std::size_t count) {
    std::unique_lock lock(mutex_);
    return came_.wait_for(lock, std::chrono::seconds(20),
                          [&] { return requests_.size() >= count; });
  }
  bool await_metrics(std::size_t count) {
    std::unique_lock lock(mutex_);
    return came_.wait_for(lock, std::chrono::seconds(20),
                          [&] { return !runs_.empty() && runs_.back().metrics.size() >= count; });
  }

 private:
  using json = nlohmann::json;

  HttpResponse answer(const HttpRequest& request);
  HttpResponse carry_out(const HttpRequest& request);
  HttpResponse log(Run& run, const json& body);
  static HttpResponse refusal(int status, const std::string& code, const std::string& message) {
    return {status, json({{"error_code", code}, {"message", message}}).dump()};
  }
  Run* find(const std::string& id) {
    for (Run& run : runs_)
      if (run.id == id) return &run;
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Failure> failures_;
  std::string refused_;
  std::set<std::string> experiments_;
  std::vector<Run> runs_;
  std::vector<HttpRequest> requests_;
  uint16_t port_ = 0;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace af::test
