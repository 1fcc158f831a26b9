// SPDX-License-Identifier: Apache-2.0
// The C API as ctypes uses it: through dlopen of the library that is shipped.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "af/af.h"

namespace {

// build/tests/unit/collectives -> build/lib/libaf_collectives.so
std::string library_path() {
  char path[4096] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  std::string self(path, std::size_t(length < 0 ? 0 : length));
  for (int i = 0; i < 3; ++i) self.erase(self.rfind('/'));
  return self + "/lib/libaf_collectives.so";
}

class CApi : public testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(library_path().c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }

  template <typename Function>
  Function* get(Function*, const char* name) {
    auto* found = reinterpret_cast<Function*>(dlsym(library_, name));
    EXPECT_NE(found, nullptr) << name;
    return found;
  }

  void* library_ = nullptr;
};

#define AF_GET(name) auto* const name##_ = get(&name, #name)

TEST_F(CApi, AWorldOfTwoThreads) {
  AF_GET(af_abi_version);
  AF_GET(af_store_in_process);
  AF_GET(af_store_release);
  AF_GET(af_communicator_create);
  AF_GET(af_communicator_destroy);
  AF_GET(af_all_reduce);
  AF_GET(af_barrier);
  AF_GET(af_allocate);
  AF_GET(af_buffer_data);
  AF_GET(af_buffer_bytes);
  AF_GET(af_buffer_release);
  AF_GET(af_work_synchronize);
  AF_GET(af_work_generation);
  AF_GET(af_work_release);
  AF_GET(af_description);
  AF_GET(af_last_error);
  EXPECT_EQ(af_abi_version_(), AF_ABI_VERSION);
  af_store* store = nullptr;
  ASSERT_EQ(af_store_in_process_(&store), AF_OK);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      af_communicator* world = nullptr;
      ASSERT_EQ(
          af_communicator_create_(rank, 2, 5, 20'000, AF_BACKEND_LOCAL, nullptr, -1, store, &world),
          AF_OK)
          << af_last_error_();
      EXPECT_STREQ(af_description_(world), "local, 2 ranks on 1 node: shared memory");
      af_buffer* buffer = nullptr;
      ASSERT_EQ(af_allocate_(world, 400'000, &buffer), AF_OK);
      EXPECT_EQ(af_buffer_bytes_(buffer), 400'000u);
      auto* x = static_cast<float*>(af_buffer_data_(buffer));
      for (int i = 0; i < 100'000; ++i) x[i] = float(rank + 1);
      af_work* work = nullptr;
      ASSERT_EQ(af_all_reduce_(world, x, x, 100'000, AF_F32, AF_AVG, 2.0, nullptr, &work), AF_OK);
      EXPECT_EQ(af_work_generation_(work), 5u);
      EXPECT_EQ(af_work_synchronize_(work), AF_OK) << af_last_error_();
      af_work_release_(work);
      EXPECT_EQ(x[99'999], 3.0f);
      EXPECT_EQ(af_all_reduce_(world, x, x, 3, AF_F32, AF_MAX, 1.0, nullptr, nullptr), AF_OK);
      EXPECT_EQ(af_barrier_(world, nullptr, nullptr), AF_OK);
      af_buffer_release_(buffer);
      af_communicator_destroy_(world);
    });
  }
  for (auto& thread : threads) thread.join();
  af_store_release_(store);
}

TEST_F(CApi, ErrorsAreCodesWithATextPerThread) {
  AF_GET(af_communicator_create);
  AF_GET(af_communicator_destroy);
  AF_GET(af_all_reduce);
  AF_GET(af_last_error);
  AF_GET(af_last_error_ranks);
  AF_GET(af_group_end);
  AF_GET(af_work_synchronize);
  af_communicator* world = nullptr;
  EXPECT_EQ(af_communicator_create_(5, 2, 0, 1000, 1, nullptr, -1, nullptr, &world),
            AF_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(af_last_error_(), "rank 5 is not in a world of 2");
  EXPECT_EQ(af_last_error_ranks_(nullptr, 0), 0);
  std::thread([&] { EXPECT_STREQ(af_last_error_(), ""); }).join();
  ASSERT_EQ(af_communicator_create_(0, 1, 0, 1000, 0, nullptr, -1, nullptr, &world), AF_OK);
  float x = 1;
  EXPECT_EQ(af_all_reduce_(world, &x, &x, 1, 99, AF_SUM, 1.0, nullptr, nullptr),
            AF_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(af_all_reduce_(nullptr, &x, &x, 1, AF_F32, AF_SUM, 1.0, nullptr, nullptr),
            AF_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(af_work_synchronize_(nullptr), AF_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(af_group_end_(), AF_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(af_all_reduce_(world, &x, &x, 1, AF_F32, AF_SUM, 1.0, nullptr, nullptr), AF_OK);
  af_communicator_destroy_(world);
}

TEST_F(CApi, TheLibraryShowsItsInterfaceOnly) {
  FILE* nm = popen(("nm -DC --defined-only " + library_path()).c_str(), "r");
  ASSERT_NE(nm, nullptr);
  char line[4096];
  int c_functions = 0;
  while (fgets(line, sizeof(line), nm) != nullptr) {
    std::string name = line;
    name = name.substr(name.find(' ') + 3);
    c_functions += name.starts_with("af_");
    const bool ours = name.starts_with("af_") || name.find("af::") != std::string::npos;
    EXPECT_TRUE(ours) << name;
    EXPECT_EQ(name.find("af::local"), std::string::npos) << name;
    EXPECT_EQ(name.find("nlohmann"), std::string::npos) << name;
  }
  EXPECT_EQ(pclose(nm), 0);
  EXPECT_GE(c_functions, 36);
}

}  // namespace
