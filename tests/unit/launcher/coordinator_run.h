// SPDX-License-Identifier: Apache-2.0
// A coordinator as its tests see it: without processes, sockets or waiting. Its clock is set by
// hand, its journal lies in a temporary directory, its orders to agents are given to the test.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/clock.h"
#include "launcher/coordinator.h"
#include "launcher/monotonic_seconds.h"

namespace af {

inline Worker coordinator_test_worker(int task) {
  Worker worker;
  worker.task = task;
  worker.host = "n" + std::to_string(task);
  worker.address = "10.0.0." + std::to_string(task % 250 + 1);
  worker.port = 4000;
  worker.af_version = "1";
  return worker;
}

class NotedSatellites : public Satellites {
 public:
  void set_wanted(int number) override { wanted = number; }
  void joined(const std::string&, const std::string&) override { ++joins; }
  void left(const std::string&, double, bool explained) override {
    ++leaves;
    unexplained += !explained;
  }
  void stop() override { stopped = true; }
  int wanted = -1, joins = 0, leaves = 0, unexplained = 0;
  bool stopped = false;
};

// What af-launch says to the person goes to a file while this lives.
class QuietStderr {
 public:
  explicit QuietStderr(const std::filesystem::path& path) : before_(::dup(2)) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(file, 2);
    ::close(file);
  }
  ~QuietStderr() {
    ::dup2(before_, 2);
    ::close(before_);
  }

 private:
  int before_;
};

struct RunShape {
  bool satellites = true;
  int max_workers = 4;
  bool elastic = true;
  int tasks = 1;  // of the job itself
};

class CoordinatorRun {
 public:
  using OnOrder = std::function<void(int task, const nlohmann::json& order)>;

  // `on_order`: every order but beats, as it is given. May be null.
  explicit CoordinatorRun(RunShape shape = {}, OnOrder on_order = nullptr)
      : on_order_(std::move(on_order)), directory_(make_directory()), quiet_(directory_ / "said") {
    Clock::by_hand = int64_t{1000} * 1'000'000'000;
    journal_ = std::make_unique<Journal>(*writer_, RunDirectory{.path = directory_},
                                         nlohmann::ordered_json{{"generation", 0}});
    std::vector<Worker> workers;
    workers.reserve(static_cast<size_t>(shape.tasks));
    for (int task = 0; task < shape.tasks; ++task) workers.push_back(coordinator_test_worker(task));
    PlanOptions plan_options;
    plan_options.elastic = shape.elastic;
    CoordinatorOptions options;
    options.own_tasks = {0};
    options.plan = plan_options;
    options.max_workers = shape.max_workers;
    coordinator_ = std::make_unique<Coordinator>(
        io_, *writer_, *journal_, make_plan(workers, plan_options), std::move(options),
        shape.satellites ? &satellites : nullptr, [this](int with) { code = with; });
    coordinator_->begin();
    for (int task = 0; task < shape.tasks; ++task) {
      beating_[task] = task != 0;
      coordinator_->agent_joined(task, sender(task), closer(task));
    }
    settle();
  }
  ~CoordinatorRun() {
    coordinator_.reset();
    writer_.reset();
    Clock::by_hand = 0;
    std::filesystem::remove_all(directory_);
  }
  CoordinatorRun(const CoordinatorRun&) = delete;

  Coordinator& operator*() { return *coordinator_; }
  Coordinator* operator->() { return coordinator_.get(); }

  // --- time
  // Everything that is due now.
  void settle() {
    // asio looks at its timers when the nearest one changes: this one is always the nearest.
    Timer wake(io_, Clock::time_point(Clock::duration(1)));
    wake.async_wait([](const asio::error_code&) {});
    io_.restart();
    io_.poll();
  }
  void pass(double seconds, double step = 0.05) {
    for (double end = now() + seconds; now() < end - 1e-9;) {
      Clock::by_hand += static_cast<int64_t>(std::min(step, end - now()) * 1e9) + 1;
      if (now() >= next_beat_) {
        next_beat_ = now() + 1;
        for (const auto& [task, beats] : std::map(beating_))
          if (beats) coordinator_->on_message(task, {{"op", "beat"}});
      }
      settle();
    }
  }
  static double now() { return monotonic_seconds(); }

  // --- agents and their ranks
  int join(const std::string& job = "7") {
    std::string why;
    const int next = next_task_;
    const auto task = coordinator_->satellite_joined(
        job, coordinator_test_worker(next),
        [this, next](const nlohmann::json& order) { sender(next)(order); },
        [this, next] { closer(next)(); }, why);
    refused = task ? "" : why;
    if (!task) return -1;
    ++next_task_;
    beating_[*task] = true;
    settle();
    return *task;
  }
  void tell(int task, const nlohmann::json& message) {
    coordinator_->on_message(task, message);
    settle();
  }
  void hello(int task) { tell(task, {{"op", "client"}}); }
  void arrive(int task, int generation, int64_t step, bool in_step = false) {
    tell(task,
         {{"op", "arrive"}, {"generation", generation}, {"step", step}, {"in_step", in_step}});
  }
  void exit(int task, int with, int signal = 0) {
    tell(task, {{"op", "rank_exit"},
                {"rank", task},
                {"host", coordinator_test_worker(task).host},
                {"code", with},
                {"signal", signal},
                {"log", "a log"}});
  }
  void lose(int task, const std::string& how = "connection closed") {
    beating_[task] = false;
    coordinator_->agent_left(task, how);
    settle();
  }
  void silence(int task) { beating_[task] = false; }

  // --- what came of it
  // The next order to the task of this op, or with an event of this name; null if none came. What
  // was before it is dropped.
  nlohmann::json take(int task, const std::string& what) {
    auto& all = orders[task];
    while (!all.empty()) {
      const nlohmann::json order = all.front();
      all.erase(all.begin());
      if (name_of(order) == what) return order.contains("event") ? order["event"] : order;
    }
    return nullptr;
  }
  bool has(int task, const std::string& what) {
    for (const nlohmann::json& order : orders[task])
      if (name_of(order) == what) return true;
    return false;
  }
  void forget() { orders.clear(); }
  static std::string name_of(const nlohmann::json& order) {
    if (order.value("op", "") == "event") return order["event"].value("event", "");
    return order.value("op", "");
  }
  std::vector<nlohmann::json> journal() {
    writer_->drain(60);
    std::vector<nlohmann::json> lines;
    std::ifstream file(directory_ / "events.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  std::vector<nlohmann::json> journal(const std::string& event) {
    std::vector<nlohmann::json> found;
    for (const nlohmann::json& line : journal())
      if (line["event"] == event) found.push_back(line);
    return found;
  }
  std::string said() {
    writer_->drain(60);
    std::ifstream file(directory_ / "said");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // The first world of the anchor and `others` more, all of them clients. Gives its generation.
  int train_with(int others) {
    for (int i = 0; i < others; ++i) join(std::to_string(i + 1));
    hello(0);
    for (int task = 1; task <= others; ++task) hello(task);
    arrive(0, -1, -1);
    for (int task = 1; task <= others; ++task) arrive(task, -1, -1);
    pass(2);
    const nlohmann::json world = take(0, "world");
    for (int task = 1; task <= others; ++task) take(task, "world");
    return world.is_null() ? -1 : world.value("generation", -1);
  }

  NotedSatellites satellites;
  std::map<int, std::vector<nlohmann::json>> orders;
  std::vector<int> closed;  // connections that the coordinator has given up
  std::optional<int> code;  // the run is over
  std::string refused;

 private:
  static std::filesystem::path make_directory() {
    std::string name = (std::filesystem::temp_directory_path() / "af-coordinator-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    return name;
  }
  Coordinator::Send sender(int task) {
    return [this, task](const nlohmann::json& order) {
      if (order.value("op", "") == "beat") return;
      if (on_order_)
        on_order_(task, order);
      else
        orders[task].push_back(order);
    };
  }
  std::function<void()> closer(int task) {
    return [this, task] { closed.push_back(task); };
  }

  OnOrder on_order_;
  std::filesystem::path directory_;
  QuietStderr quiet_;
  asio::io_context io_;
  std::unique_ptr<OutputWriter> writer_ = std::make_unique<OutputWriter>();
  std::unique_ptr<Journal> journal_;
  std::unique_ptr<Coordinator> coordinator_;
  std::map<int, bool> beating_;
  int next_task_ = 1;
  double next_beat_ = 0;
};

}  // namespace af
