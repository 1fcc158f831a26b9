// SPDX-License-Identifier: Apache-2.0
#include "af/train/session.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/unique_fd.h"
#include "tests/unit/temporary_directory.h"

namespace af::train {
namespace {

using nlohmann::json;

// An agent that listens and hands over the bytes it got.
class Agent {
 public:
  explicit Agent(const std::string& socket) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket.data(), socket.size());
    socklen_t length = offsetof(sockaddr_un, sun_path) + socket.size();
    if (socket[0] == '@')
      address.sun_path[0] = '\0';
    else
      ++length;
    listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    good_ = ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
            ::listen(listener_.get(), 1) == 0;
  }
  bool good() const { return good_; }
  void accept() {
    peer_.reset(::accept(listener_.get(), nullptr, nullptr));
    const timeval limit{20, 0};  // a line that never comes fails the test instead of hanging it
    ::setsockopt(peer_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  void hang_up() { peer_.reset(); }

  std::string read_some() {
    char buffer[65536];
    const ssize_t n = ::recv(peer_.get(), buffer, sizeof buffer, 0);
    return std::string(buffer, n > 0 ? static_cast<size_t>(n) : 0);
  }
  json read_line() {
    while (text_.find('\n') == std::string::npos) {
      const std::string more = read_some();
      if (more.empty()) return nullptr;
      text_ += more;
    }
    const size_t end = text_.find('\n');
    json line = json::parse(text_.substr(0, end));
    text_.erase(0, end + 1);
    return line;
  }

 private:
  UniqueFd listener_;
  UniqueFd peer_;
  std::string text_;
  bool good_ = false;
};

std::string abstract_name() {
  return "@af-session-test-" + std::to_string(::getpid());
}

TEST(Session, WithoutASocketNothingHappens) {
  Session session("");
  EXPECT_FALSE(session.connected());
  session.report(1, 0, {{"loss", 0.5}});
  session.checkpoint("/x", 1, 0.1);
}

TEST(Session, AnUnreachableAgentIsNoError) {
  Session session("@af-nobody-listens-here");
  EXPECT_FALSE(session.connected());
  session.report(1, 0, {});
  EXPECT_FALSE(Session(std::string(300, 'x')).connected());
}

TEST(Session, LinesAreAsTheProtocolSays) {
  const TemporaryDirectory directory;
  for (const std::string& name : {abstract_name(), (directory / "socket").string()}) {
    Agent agent(name);
    ASSERT_TRUE(agent.good()) << name;
    Session session(name);
    ASSERT_TRUE(session.connected()) << name;
    agent.accept();
    session.report(420, 3, {{"loss", 0.25}, {"accuracy", std::nan("")}});
    session.checkpoint("/work/a \"b\"\n\xff", 420, 1.5);
    EXPECT_EQ(agent.read_line(), json::parse(R"({"op":"report","step":420,"epoch":3,
                                      "metrics":{"loss":0.25,"accuracy":null}})"));
    const json line = agent.read_line();
    EXPECT_EQ(line["op"], "checkpoint");
    EXPECT_EQ(line["path"], "/work/a \"b\"\n\xef\xbf\xbd");
    EXPECT_EQ(line["step"], 420);
    EXPECT_EQ(line["seconds"], 1.5);
  }
}

TEST(Session, AnAgentThatDoesNotReadBlocksNobodyAndLosesWholeLinesOnly) {
  Agent agent(abstract_name());
  ASSERT_TRUE(agent.good());
  Session session(abstract_name());
  agent.accept();
  const std::map<std::string, double> metrics = {{std::string(1000, 'm'), 1.0}};
  for (int step = 0; step < 5000; ++step) session.report(step, 0, metrics);  // about 5 MB
  // What was kept comes whole and in order; then lines of now, for which there is room again.
  int64_t last = -1;
  for (int64_t now = 1000000; last < 1000000; ++now) {
    ASSERT_LT(now, 1010000);
    session.report(now, 0, {});
    const json line = agent.read_line();
    ASSERT_FALSE(line.is_null());
    ASSERT_GT(line["step"].get<int64_t>(), last);
    last = line["step"].get<int64_t>();
  }
}

TEST(Session, AnAgentThatGoesIsNoError) {
  Agent agent(abstract_name());
  ASSERT_TRUE(agent.good());
  Session session(abstract_name());
  agent.accept();
  agent.hang_up();
  session.report(1, 0, {});  // SIGPIPE would end the test here
  session.report(2, 0, {});
  EXPECT_FALSE(session.connected());
}

TEST(Session, AForkedChildIsSilent) {
  Agent agent(abstract_name());
  ASSERT_TRUE(agent.good());
  Session session(abstract_name());
  agent.accept();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    session.report(666, 0, {});
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  session.report(1, 0, {});
  EXPECT_EQ(agent.read_line()["step"], 1);
}

}  // namespace
}  // namespace af::train
