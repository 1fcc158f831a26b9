// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/collectives/world.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <mutex>
#include <thread>

#include "collectives/local/socket.h"
#include "collectives/store/line_store.h"

namespace af::test {
namespace {

int output = -1;  // in a child: to the parent

void write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n <= 0) return;
    done += std::size_t(n);
  }
}

}  // namespace

Nodes one_node(int ranks) {
  return Nodes(std::size_t(ranks));
}

Nodes separate_nodes(int ranks) {
  Nodes nodes;
  for (int r = 0; r < ranks; ++r) nodes.push_back("node" + std::to_string(r));
  return nodes;
}

Nodes two_nodes(int ranks) {
  Nodes nodes(std::size_t(ranks), "first");
  nodes.back() = "second";
  return nodes;
}

Options options_for(const Nodes& nodes, int rank, std::chrono::milliseconds timeout) {
  Options options;
  options.rank = rank;
  options.world_size = int(nodes.size());
  options.generation = 7;
  options.timeout = timeout;
  options.backend = BackendKind::local;
  options.node_identity = nodes[std::size_t(rank)];
  options.address = "127.0.0.1";
  return options;
}

void with_threads(const Nodes& nodes, const std::function<void(Communicator&)>& body,
                  const std::function<void(Options&)>& adjust) {
  const auto store = make_in_process_store();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < int(nodes.size()); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Options options = options_for(nodes, rank);
        options.store = store;
        if (adjust) adjust(options);
        Communicator world(options);
        body(world);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

Processes::Processes() : server_(0) {}

Processes::~Processes() {
  for (Child& child : children_) {
    if (child.pid > 0) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    if (child.fd >= 0) close(child.fd);
  }
}

void Processes::start(const Options& options,
                      const std::function<std::string(const Options&)>& body) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid > 0) {
    close(ends[1]);
    children_.push_back({pid, ends[0], ""});
    return;
  }
  close(ends[0]);
  output = ends[1];
  std::string text;
  try {
    Options own = options;
    const int port = server_.port();
    own.store = std::make_shared<LineStore>("the test", [port] {
      UniqueFd fd = local::begin_connect_tcp("127.0.0.1", port);
      pollfd polled = {fd.get(), POLLOUT, 0};
      poll(&polled, 1, 5000);
      return fd;
    });
    text = body(own);
  } catch (const CommunicatorError& error) {
    text = error_text(error);
  } catch (const std::exception& error) {
    text = std::string("exception ") + error.what();
  }
  write_all(output, text);
  _exit(0);
}

std::string Processes::result(int index, std::chrono::milliseconds deadline) {
  Child& child = children_[std::size_t(index)];
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd polled = {child.fd, POLLIN, 0};
    if (left.count() <= 0 || poll(&polled, 1, int(left.count())) == 0) {
      ADD_FAILURE() << "rank " << index << " still runs; it said: " << child.text;
      return "hangs";
    }
    char bytes[4096];
    const ssize_t n = read(child.fd, bytes, sizeof(bytes));
    if (n <= 0) break;
    child.text.append(bytes, std::size_t(n));
  }
  int status = 0;
  waitpid(child.pid, &status, 0);
  child.pid = -1;
  if (WIFSIGNALED(status)) return "killed by signal " + std::to_string(WTERMSIG(status));
  const std::size_t line = child.text.rfind('\n');
  return line == std::string::npos ? child.text : child.text.substr(line + 1);
}

void Processes::signal(int index, int number) {
  ASSERT_EQ(kill(children_[std::size_t(index)].pid, number), 0);
}

void Processes::await_text(int index, const std::string& wanted) {
  Child& child = children_[std::size_t(index)];
  while (child.text.find(wanted) == std::string::npos) {
    pollfd polled = {child.fd, POLLIN, 0};
    ASSERT_EQ(poll(&polled, 1, 30'000), 1) << "rank " << index << " says nothing";
    char bytes[4096];
    const ssize_t n = read(child.fd, bytes, sizeof(bytes));
    ASSERT_GT(n, 0) << "rank " << index << " ended: " << child.text;
    child.text.append(bytes, std::size_t(n));
  }
}

void say(const std::string& line) {
  write_all(output, line + "\n");
}

std::string error_text(const CommunicatorError& error) {
  static constexpr const char* kKinds[] = {"?",        "invalid_argument", "timeout", "peer_lost",
                                           "mismatch", "aborted",          "store",   "system"};
  std::string text = kKinds[int(error.kind())];
  text += " [";
  for (std::size_t i = 0; i < error.ranks().size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(error.ranks()[i]);
  }
  return text + "]: " + error.what();
}

}  // namespace af::test
