// SPDX-License-Identifier: Apache-2.0
// af_world_* as ctypes uses them: through dlopen of the library that is shipped, in a rank process.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "af/af.h"
#include "tests/unit/collectives/world.h"
#include "tests/unit/world/fake_agent.h"

namespace af::test {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

// build/tests/unit/world -> build/lib/libaf_collectives.so
void* open_library() {
  char path[4096] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  std::string self(path, std::size_t(length < 0 ? 0 : length));
  for (int i = 0; i < 3; ++i) self.erase(self.rfind('/'));
  return dlopen((self + "/lib/libaf_collectives.so").c_str(), RTLD_NOW | RTLD_LOCAL);
}

template <typename Function>
Function* get(void* library, Function*, const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(library, name));
  if (found == nullptr) throw std::runtime_error(dlerror());
  return found;
}

#define AF_GET(name) auto* const name##_ = get(library, &name, #name)

void expect(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}
#define EXPECT_IN_CHILD(condition) expect((condition), #condition)

extern "C" void on_signal(int) {}

// What a Python program does; it runs in a child, so failures are exceptions.
std::string program() {
  void* const library = open_library();
  expect(library != nullptr, "no library");
  AF_GET(af_world_open);
  AF_GET(af_world_close);
  AF_GET(af_world_elastic);
  AF_GET(af_world_generation);
  AF_GET(af_world_rank);
  AF_GET(af_world_ranks);
  AF_GET(af_world_members);
  AF_GET(af_world_environment);
  AF_GET(af_world_communicator);
  AF_GET(af_world_flags);
  AF_GET(af_world_agree);
  AF_GET(af_world_agreed);
  AF_GET(af_world_notice);
  AF_GET(af_world_next);
  AF_GET(af_world_step_done);
  AF_GET(af_world_finished);
  AF_GET(af_world_saved);
  AF_GET(af_world_send);
  AF_GET(af_all_reduce);
  AF_GET(af_generation);
  AF_GET(af_last_error);

  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);

  EXPECT_IN_CHILD(af_world_open_("c", nullptr) == AF_ERROR_INVALID_ARGUMENT);
  af_world* world = nullptr;
  EXPECT_IN_CHILD(af_world_open_("c", &world) == AF_ERROR_INTERRUPTED);
  EXPECT_IN_CHILD(world == nullptr);
  say("interrupted");
  int code = AF_ERROR_INTERRUPTED;
  while (code == AF_ERROR_INTERRUPTED) code = af_world_open_("c", &world);
  expect(code == AF_OK, af_last_error_());

  EXPECT_IN_CHILD(af_world_elastic_(world) == 1);
  EXPECT_IN_CHILD(af_world_generation_(world) == 3);
  EXPECT_IN_CHILD(af_world_rank_(world) == 0);
  EXPECT_IN_CHILD(af_world_ranks_(world) == 1);
  int was = 5;
  int64_t step = 5;
  int in_step = 5;
  EXPECT_IN_CHILD(af_world_members_(world, nullptr, nullptr, nullptr, 0) == 1);
  EXPECT_IN_CHILD(af_world_members_(world, &was, &step, &in_step, 1) == 1);
  EXPECT_IN_CHILD(was == -1 && step == -1 && in_step == 0);
  EXPECT_IN_CHILD(Json::parse(af_world_environment_(world))["AF_BACKEND"] == "local");

  af_communicator* communicator = nullptr;
  expect(af_world_communicator_(world, &communicator) == AF_OK, af_last_error_());
  float x = 2;
  EXPECT_IN_CHILD(af_all_reduce_(communicator, &x, &x, 1, AF_F32, AF_SUM, 1.0, nullptr, nullptr) ==
                  AF_OK);
  EXPECT_IN_CHILD(af_generation_(communicator) == 3);
  EXPECT_IN_CHILD(af_world_send_(world, "no JSON") == AF_ERROR_INVALID_ARGUMENT);
  EXPECT_IN_CHILD(af_world_send_(world, R"({"op": "report"})") == AF_OK);
  af_world_step_done_(world, 1);

  while ((af_world_flags_(world, 0) & AF_FLAG_SAVE) == 0) usleep(1000);
  EXPECT_IN_CHILD(af_world_flags_(world, 0) == (AF_FLAG_CHANGE | AF_FLAG_SAVE));
  EXPECT_IN_CHILD(Json::parse(af_world_notice_(world))["reason"] == "end");
  EXPECT_IN_CHILD(af_world_agreed_(world) == 0);
  af_world_agree_(world, AF_FLAG_CHANGE | AF_FLAG_SAVE);
  EXPECT_IN_CHILD(af_world_agreed_(world) == (AF_FLAG_CHANGE | AF_FLAG_SAVE));
  EXPECT_IN_CHILD(af_world_flags_(world, 0) == 0);
  af_world_saved_(world, "/p", 1);
  af_world_finished_(world);

  int leave = -1;
  EXPECT_IN_CHILD(af_world_next_(world, 1, 0, &leave) == AF_ERROR_INTERRUPTED);
  say("interrupted again");
  code = AF_ERROR_INTERRUPTED;
  while (code == AF_ERROR_INTERRUPTED) code = af_world_next_(world, 1, 0, &leave);
  EXPECT_IN_CHILD(code == AF_OK && leave == 0);
  EXPECT_IN_CHILD(af_world_generation_(world) == 4);
  expect(af_world_communicator_(world, &communicator) == AF_OK, af_last_error_());
  EXPECT_IN_CHILD(af_generation_(communicator) == 4);
  af_world_step_done_(world, 2);
  while ((af_world_agreed_(world) & AF_FLAG_LOST) == 0) usleep(1000);
  EXPECT_IN_CHILD(af_all_reduce_(communicator, &x, &x, 1, AF_F32, AF_SUM, 1.0, nullptr, nullptr) ==
                  AF_ERROR_ABORTED);
  code = AF_ERROR_INTERRUPTED;
  while (code == AF_ERROR_INTERRUPTED) code = af_world_next_(world, 2, 1, &leave);
  EXPECT_IN_CHILD(code == AF_OK && leave == 1);
  af_world_close_(world);
  return "good";
}

// Signals a rank again and again, since one that comes just before it waits is not seen.
class Signals {
 public:
  Signals(Processes& processes, int number)
      : thread_([this, &processes, number] {
          while (!over_) {
            processes.signal(0, number);
            std::this_thread::sleep_for(2ms);
          }
        }) {}
  ~Signals() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST(WorldInC, GoesThroughWorlds) {
  FakeAgent agent(1);
  Processes processes;
  processes.start(Options{}, [&](const Options&) {
    setenv("AF_SOCKET", agent.socket(0).c_str(), 1);
    setenv("AF_ELASTIC", "1", 1);
    return program();
  });
  EXPECT_EQ(agent.await(0, "hello")["client"], "c");
  {
    const Signals signals(processes, SIGUSR1);
    processes.await_text(0, "interrupted\n");
  }
  agent.form(3, {0}, {{"AF_BACKEND", "local"}});
  agent.await_first_step(0, 3);
  agent.say(0, {{"event", "change"}, {"when", "step"}});
  agent.say(0, {{"event", "save"}, {"reason", "end"}, {"deadline", nullptr}});
  EXPECT_EQ(agent.await(0, "arrive")["generation"], 3);
  {
    const Signals signals(processes, SIGUSR1);
    processes.await_text(0, "again\n");
  }
  agent.send_world(4, {0});
  agent.await_first_step(0, 4);
  agent.lose(4, {0}, "test");
  const Json last = agent.await(0, "arrive");
  EXPECT_EQ(last["generation"], 4);
  EXPECT_EQ(last["in_step"], true);
  agent.say(0, {{"event", "leave"}, {"why", "test"}});
  EXPECT_EQ(processes.result(0), "good");
  int hellos = 0;
  int arrivals = 0;
  for (const Json& line : agent.lines(0)) {
    hellos += line["op"] == "hello" ? 1 : 0;
    arrivals += line["op"] == "arrive" ? 1 : 0;
  }
  EXPECT_EQ(hellos, 1);
  EXPECT_EQ(arrivals, 3);
}

}  // namespace
}  // namespace af::test
