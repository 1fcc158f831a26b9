// SPDX-License-Identifier: Apache-2.0
#include "launcher/key_store.h"

#include <utility>

namespace af {

void KeyStore::set(const std::string& key, const std::string& value) {
  values_[key] = value;
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  const auto waiters = std::move(found->second);
  waiters_.erase(found);
  for (const auto& waiter : waiters) {
    waiter->timer->cancel();
    waiter->on_value(value);
  }
}

void KeyStore::get(const std::string& key, std::chrono::milliseconds patience, OnValue on_value) {
  const auto found = values_.find(key);
  if (found != values_.end()) return on_value(found->second);
  auto waiter = std::make_shared<Waiter>();
  waiter->on_value = std::move(on_value);
  waiter->timer = std::make_unique<Timer>(io_, patience);
  waiters_[key].push_back(waiter);
  waiter->timer->async_wait(
      [this, key, weak = std::weak_ptr<Waiter>(waiter)](const asio::error_code& cancelled) {
        const auto expired = weak.lock();
        if (cancelled || !expired) return;
        waiters_[key].remove(expired);
        if (waiters_[key].empty()) waiters_.erase(key);
        expired->on_value(std::nullopt);
      });
}

void KeyStore::forget() {
  values_.clear();
  const auto waiting = std::exchange(waiters_, {});
  for (const auto& [key, waiters] : waiting)
    for (const auto& waiter : waiters) {
      waiter->timer->cancel();
      waiter->on_value(std::nullopt);
    }
}

}  // namespace af
