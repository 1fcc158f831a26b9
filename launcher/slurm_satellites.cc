// SPDX-License-Identifier: Apache-2.0
#include "launcher/slurm_satellites.h"

#include <fmt/core.h>

#include <asio/steady_timer.hpp>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "common/error.h"
#include "launcher/job_query.h"
#include "launcher/satellite_pool.h"
#include "launcher/say.h"
#include "launcher/slurm_commands.h"

namespace af {
namespace {

// The end of the anchor's job is looked at again so often: administrators extend it.
constexpr auto kLookAtEnd = std::chrono::minutes(5);

class SlurmSatellites : public Satellites {
 public:
  SlurmSatellites(asio::io_context& io, OutputWriter& writer, Journal& journal,
                  SatelliteFacts facts)
      : io_(io),
        writer_(writer),
        environment_(facts.inherited),
        slurm_(slurm_commands(io, facts.inherited)),
        pool_(
            io, *slurm_,
            {.facts = std::move(facts),
             .seconds_left = [this] { return seconds_left(); },
             .jitter = nullptr,
             .now = nullptr},
            [&journal](const std::string& event, const nlohmann::json& fields) {
              journal.event(event, fields);
            },
            [&writer](const std::string& text) { say(writer, text); }),
        timer_(io) {
    look_at_end();
  }

  void set_wanted(int number) override { pool_.set_wanted(number); }
  void joined(const std::string& job, const std::string& node) override {
    pool_.agent_joined(job, node);
  }
  void left(const std::string& job, double lifetime, bool explained) override {
    pool_.agent_left(job, lifetime, explained);
  }
  void stop() override {
    if (std::exchange(stopped_, true)) return;
    timer_.cancel();
    if (started_) pool_.stop([] {});
  }

 private:
  // The first submission waits for the answer: a satellite must not outlive its anchor.
  void look_at_end() {
    query_job(io_, environment_, [this](const JobAnswer& answer) {
      if (stopped_) return;
      if (answer.status) end_ = answer.status->end_time;
      if (!started_) start();
      timer_.expires_after(kLookAtEnd);
      timer_.async_wait([this](const asio::error_code& error) {
        if (!error) look_at_end();
      });
    });
  }

  void start() {
    try {
      pool_.start();
      started_ = true;
    } catch (const Error& error) {
      say(writer_, fmt::format("no more workers are asked for: {}", error.what()));
      stopped_ = true;
    }
  }

  double seconds_left() const {
    if (!end_) return std::numeric_limits<double>::infinity();
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    return static_cast<double>(*end_) - now;
  }

  asio::io_context& io_;
  OutputWriter& writer_;
  Environment environment_;
  std::unique_ptr<SlurmCommands> slurm_;
  SatellitePool pool_;
  asio::steady_timer timer_;
  std::optional<int64_t> end_;
  bool started_ = false, stopped_ = false;
};

}  // namespace

std::unique_ptr<Satellites> slurm_satellites(asio::io_context& io, OutputWriter& writer,
                                             Journal& journal, SatelliteFacts facts) {
  return std::make_unique<SlurmSatellites>(io, writer, journal, std::move(facts));
}

}  // namespace af
