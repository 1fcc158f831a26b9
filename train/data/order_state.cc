// SPDX-License-Identifier: Apache-2.0
#include "train/data/order_state.h"

#include "common/error.h"

namespace af::train {
namespace {

template <class Map>
const auto& at(const Map& map, const std::string& name) {
  const auto found = map.find(name);
  if (found == map.end())
    throw Error::format(
        "the saved position in the data has no {}: it was saved by another kind of order (by row, "
        "by windows)",
        name);
  return found->second;
}

}  // namespace

int64_t number_of(const OrderState& state, const std::string& name) {
  return at(state.numbers, name);
}

const std::vector<int64_t>& list_of(const OrderState& state, const std::string& name) {
  return at(state.lists, name);
}

void save_step(OrderState& state, int dealt_to, const std::vector<int>& dealt_as) {
  if (dealt_to == 0) return;
  state.numbers["dealt_to"] = dealt_to;
  state.lists["dealt_as"].assign(dealt_as.begin(), dealt_as.end());
}

void restore_step(const OrderState& state, int& dealt_to, std::vector<int>& dealt_as) {
  dealt_to = 0;
  dealt_as.clear();
  if (!state.numbers.contains("dealt_to")) return;
  dealt_to = static_cast<int>(number_of(state, "dealt_to"));
  for (const int64_t as : list_of(state, "dealt_as")) dealt_as.push_back(static_cast<int>(as));
}

}  // namespace af::train
