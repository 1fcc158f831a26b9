// SPDX-License-Identifier: Apache-2.0
#include "launcher/tcp_bootstrap.h"

#include <dirent.h>

#include <asio/steady_timer.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "common/atomic_file.h"
#include "common/error.h"
#include "launcher/gather.h"

namespace af {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class Client : public Bootstrap {
 public:
  Client(int task, PeerAddress hub, std::string secret)
      : task_(task), hub_(std::move(hub)), secret_(std::move(secret)) {}

  std::vector<std::string> all_gather(const std::string& mine) override {
    asio::io_context io;
    std::optional<std::vector<std::string>> texts;
    std::string failure;
    std::shared_ptr<LineConnection> connection;
    const json hello = {{"role", "gather"}, {"task", task_}, {"text", mine}};
    connect_authenticated(
        io, hub_, secret_, hello, kBootstrapPatience,
        [&](std::shared_ptr<LineConnection> ready) {
          connection = std::move(ready);
          connection->hand_over(
              [&](const std::string& line) {
                texts = json::parse(line).at("texts").get<std::vector<std::string>>();
                connection->close();
              },
              [&](const std::string& reason) { failure = reason; });
        },
        [&](const std::string& reason) { failure = reason; });
    // Longer than the hub's own patience: the hub knows who is missing and says so.
    io.run_for(kBootstrapPatience + std::chrono::seconds(5));
    if (texts) return *texts;
    throw Error::format("task {} cannot join the others at {}: {}", task_, to_text(hub_),
                        failure.empty() ? "no answer" : failure);
  }
  std::string name() const override { return "tcp"; }

 private:
  int task_;
  PeerAddress hub_;
  std::string secret_;
};

class Hub : public Bootstrap {
 public:
  Hub(int tasks, std::string address, std::string secret, fs::path file, fs::path run_directory)
      : tasks_(tasks),
        address_(std::move(address)),
        secret_(std::move(secret)),
        file_(std::move(file)),
        run_directory_(std::move(run_directory)) {}

  std::vector<std::string> all_gather(const std::string& mine) override {
    Gather gather(tasks_);
    gather.add(0, mine, nullptr);
    if (gather.complete()) return gather.texts();
    asio::io_context io;
    AuthenticatedListener listener(
        io, secret_, [&](const json& hello, std::shared_ptr<LineConnection> peer) {
          if (hello.value("role", "") != "gather") return peer->close();
          gather.add(hello.value("task", -1), hello.value("text", ""), std::move(peer));
        });
    const json announcement = {{"address", address_},
                               {"port", listener.port()},
                               {"run_directory", run_directory_.string()}};
    write_file_atomically(file_, announcement.dump(), 0600);
    const auto deadline = std::chrono::steady_clock::now() + kBootstrapPatience;
    while (!gather.complete() && std::chrono::steady_clock::now() < deadline)
      io.run_one_until(deadline);
    std::error_code ignored;
    fs::remove(file_, ignored);
    if (!gather.complete())
      throw Error::format("only {} of {} agents have joined within {} s: {} missing",
                          gather.present(), tasks_, kBootstrapPatience.count(), gather.missing());
    // Small answers into fresh sockets: the kernel takes them at once.
    while (io.poll() > 0) {
    }
    return gather.texts();
  }
  std::string name() const override { return "tcp"; }

 private:
  int tasks_;
  std::string address_, secret_;
  fs::path file_, run_directory_;
};

}  // namespace

std::unique_ptr<Bootstrap> make_tcp_bootstrap(int task, const PeerAddress& hub,
                                              const std::string& secret) {
  return std::make_unique<Client>(task, hub, secret);
}

std::unique_ptr<Bootstrap> make_tcp_bootstrap_hub(int tasks, const std::string& my_address,
                                                  const std::string& secret, const fs::path& file,
                                                  const fs::path& run_directory) {
  return std::make_unique<Hub>(tasks, my_address, secret, file, run_directory);
}

Rendezvous await_rendezvous(const fs::path& file, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    // NFS remembers for up to a minute that a file was not there; reading the directory makes it
    // ask.
    if (DIR* directory = ::opendir(file.parent_path().c_str())) {
      while (::readdir(directory) != nullptr) {
      }
      ::closedir(directory);
    }
    std::error_code ignored;
    if (fs::exists(file, ignored)) break;
    if (std::chrono::steady_clock::now() > deadline)
      throw Error::format(
          "task 0 has not announced itself in {} within {} s; is the directory shared between the "
          "nodes? (--run-dir chooses another)",
          file.string(), patience.count() / 1000);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const json announcement = json::parse(read_file(file), nullptr, false);
  if (!announcement.is_object())
    throw Error::format("{} is damaged: delete it and start again", file.string());
  return {.hub = {.address = announcement.value("address", ""),
                  .port = announcement.value("port", uint16_t{0})},
          .run_directory = announcement.value("run_directory", "")};
}

}  // namespace af
