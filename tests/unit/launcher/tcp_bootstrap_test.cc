// SPDX-License-Identifier: Apache-2.0
// Agents as threads: all of them get everybody's text, in the order of tasks.
#include "launcher/tcp_bootstrap.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "common/error.h"
#include "launcher/gather.h"

namespace af {
namespace {

namespace fs = std::filesystem;

class TcpBootstrap : public testing::Test {
 protected:
  TcpBootstrap() {
    std::string name = (fs::temp_directory_path() / "af-bootstrap-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~TcpBootstrap() override { fs::remove_all(directory_); }
  fs::path directory_;
};

TEST_F(TcpBootstrap, GathersOverARendezvousFile) {
  constexpr int kTasks = 8;
  const fs::path file = directory_ / "rendezvous";
  std::vector<std::vector<std::string>> results(kTasks);
  std::vector<std::thread> agents;
  for (int task = kTasks - 1; task >= 0; --task)
    agents.emplace_back([&, task] {
      std::unique_ptr<Bootstrap> bootstrap;
      if (task == 0) {
        bootstrap = make_tcp_bootstrap_hub(kTasks, "127.0.0.1", "secret", file, directory_);
      } else {
        const Rendezvous found = await_rendezvous(file, std::chrono::seconds(20));
        EXPECT_EQ(found.run_directory, directory_);
        bootstrap = make_tcp_bootstrap(task, found.hub, "secret");
      }
      results[static_cast<size_t>(task)] =
          bootstrap->all_gather("text \"of\" " + std::to_string(task) + std::string(5000, 'x'));
    });
  for (std::thread& agent : agents) agent.join();
  for (const auto& texts : results) {
    ASSERT_EQ(texts.size(), static_cast<size_t>(kTasks));
    for (int task = 0; task < kTasks; ++task)
      EXPECT_EQ(texts[static_cast<size_t>(task)].find("text \"of\" " + std::to_string(task)), 0u);
  }
  EXPECT_FALSE(fs::exists(file));
}

TEST_F(TcpBootstrap, AWorldOfOneWaitsForNobody) {
  const auto alone =
      make_tcp_bootstrap_hub(1, "127.0.0.1", "s", directory_ / "rendezvous", directory_);
  EXPECT_EQ(alone->all_gather("me"), std::vector<std::string>{"me"});
}

TEST_F(TcpBootstrap, WithoutARendezvousTheFileIsNamed) {
  try {
    await_rendezvous(directory_ / "nowhere", std::chrono::milliseconds(50));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("nowhere"), std::string::npos);
  }
}

TEST(Gather, NamesWhoIsMissing) {
  Gather gather(4);
  gather.add(0, "a", nullptr);
  gather.add(2, "c", nullptr);
  EXPECT_EQ(gather.missing(), "tasks 1, 3");
  gather.add(1, "b", nullptr);
  EXPECT_EQ(gather.missing(), "task 3");
  EXPECT_FALSE(gather.complete());
  EXPECT_THROW(gather.add(4, "", nullptr), Error);
  EXPECT_THROW(gather.add(-1, "", nullptr), Error);
  gather.add(3, "d", nullptr);
  EXPECT_TRUE(gather.complete());
  EXPECT_EQ(gather.texts(), (std::vector<std::string>{"a", "b", "c", "d"}));
}

}  // namespace
}  // namespace af
