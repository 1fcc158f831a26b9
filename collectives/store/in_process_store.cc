// SPDX-License-Identifier: Apache-2.0
// The store of ranks that are threads.
#include <condition_variable>
#include <map>
#include <mutex>

#include "af/communicator.h"

namespace af {
namespace {

class InProcessStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    const auto there = [&] { return values_.count(key) != 0; };
    if (!changed_.wait_for(lock, timeout, there)) {
      throw CommunicatorError(CommunicatorError::Kind::timeout,
                              "nobody set the key " + key + " in time");
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace

std::shared_ptr<Store> make_in_process_store() {
  return std::make_shared<InProcessStore>();
}

}  // namespace af
