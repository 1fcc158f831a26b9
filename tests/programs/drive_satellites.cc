// SPDX-License-Identifier: Apache-2.0
// Drives a SatellitePool against a real Slurm: tests/cluster/test_satellites.py tells it what to do
// and reads what it says.
//
//   drive_satellites RUN_DIR NAME PROGRAM SHIELD   PROGRAM in the place of af-launch
//   drive_satellites --cancel NAME SECONDS         cancel_satellites(); prints why not, or "done"
//
// stdin, one command a line: want N, joined JOB NODE, left JOB SECONDS explained|unexplained, stop.
// stdout: "event NAME {…}", "say TEXT", "stopped".
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/read_until.hpp>
#include <asio/streambuf.hpp>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "launcher/satellite_name.h"
#include "launcher/satellite_pool.h"
#include "launcher/signal_watch.h"

namespace {

class Driver {
 public:
  explicit Driver(const std::vector<std::string>& words)
      : slurm_(af::slurm_commands(io_, af::current_environment())),
        pool_(
            io_, *slurm_, options(words),
            [](const std::string& event, const nlohmann::json& fields) {
              std::cout << "event " << event << " " << fields.dump() << std::endl;
            },
            [](const std::string& text) { std::cout << "say " << text << std::endl; }),
        input_(io_, ::dup(STDIN_FILENO)) {}

  void run() {
    pool_.start();
    read();
    io_.run();
  }

 private:
  static af::SatellitePoolOptions options(const std::vector<std::string>& words) {
    af::SatellitePoolOptions result;
    result.facts = {.name = words.at(1),
                    .run_id = "test",
                    .launcher = words.at(2),
                    .coordinator = "10.99.0.1:1",
                    .run_directory = words.at(0),
                    .srun_shield = words.at(3),
                    .inherited = af::current_environment()};
    result.seconds_left = [] { return 900.0; };
    return result;
  }

  void read() {
    asio::async_read_until(input_, buffer_, '\n', [this](const asio::error_code& error, size_t) {
      if (error) return stop();
      std::istream stream(&buffer_);
      std::string line;
      std::getline(stream, line);
      obey(line);
      read();
    });
  }

  void obey(const std::string& line) {
    std::istringstream words(line);
    std::string command, job, other;
    int number = 0;
    double seconds = 0;
    words >> command;
    if (command == "want" && words >> number) pool_.set_wanted(number);
    if (command == "joined" && words >> job >> other) pool_.agent_joined(job, other);
    if (command == "left" && words >> job >> seconds >> other)
      pool_.agent_left(job, seconds, other == "explained");
    if (command == "stop") stop();
  }

  void stop() {
    pool_.stop([this] {
      std::cout << "stopped" << std::endl;
      io_.stop();
    });
  }

  asio::io_context io_;
  std::unique_ptr<af::SlurmCommands> slurm_;
  af::SatellitePool pool_;
  asio::posix::stream_descriptor input_;
  asio::streambuf buffer_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    af::block_watched_signals();
    if (words.at(0) == "--cancel") {
      const std::string problem =
          af::cancel_satellites(words.at(1), af::current_environment(), std::stod(words.at(2)));
      std::cout << (problem.empty() ? "done" : problem) << std::endl;
      return problem.empty() ? 0 : 1;
    }
    Driver(words).run();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
