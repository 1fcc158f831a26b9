// SPDX-License-Identifier: Apache-2.0
// The keys of a generation, at the coordinator: set once or again, and waited for.
#pragma once

#include <asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "launcher/clock.h"

namespace af {

// Used from the loop's thread.
class KeyStore {
 public:
  // The value, or nothing when the time is over or forget() was called.
  using OnValue = std::function<void(const std::optional<std::string>&)>;

  explicit KeyStore(asio::io_context& io) : io_(io) {}

  void set(const std::string& key, const std::string& value);
  // Calls back at once if the key is there, else when it is set, else after `patience`.
  void get(const std::string& key, std::chrono::milliseconds patience, OnValue on_value);
  // The world that met here is over: drops all keys, and tells all who wait that nothing comes.
  void forget();

 private:
  struct Waiter {
    OnValue on_value;
    std::unique_ptr<Timer> timer;
  };
  asio::io_context& io_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::list<std::shared_ptr<Waiter>>> waiters_;
};

}  // namespace af
