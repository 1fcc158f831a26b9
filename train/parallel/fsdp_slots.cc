// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/fsdp_slots.h"

#include <algorithm>
#include <functional>
#include <tuple>

namespace af::train {

UnitSlots::UnitSlots(const std::vector<std::size_t>& unit_bytes)
    : unit_bytes_(unit_bytes), slot_of_(unit_bytes.size(), -1) {
  std::vector<std::size_t> largest = unit_bytes;
  std::sort(largest.begin(), largest.end(), std::greater<>());
  for (std::size_t i = 0; i < std::min<std::size_t>(2, largest.size()); ++i)
    if (largest[i] > 0) slots_.push_back({largest[i]});
}

std::vector<int> UnitSlots::units() const {
  std::vector<int> units;
  for (const Slot& slot : slots_)
    if (slot.unit >= 0) units.push_back(slot.unit);
  return units;
}

std::optional<UnitSlots::Place> UnitSlots::take_ahead(int unit) {
  const std::size_t bytes = unit_bytes_[static_cast<std::size_t>(unit)];
  // A free slot, the smallest that fits; else the one that was not used for longest.
  const auto cost = [](const Slot& slot) {
    return std::make_tuple(slot.unit >= 0, slot.unit >= 0 ? slot.used : 0, slot.bytes);
  };
  int best = -1;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].bytes < bytes || slots_[i].pinned) continue;
    if (best < 0 || cost(slots_[i]) < cost(slots_[static_cast<std::size_t>(best)]))
      best = static_cast<int>(i);
  }
  if (best < 0) return std::nullopt;
  Slot& slot = slots_[static_cast<std::size_t>(best)];
  const Place place{best, slot.unit, false};
  if (slot.unit >= 0) slot_of_[static_cast<std::size_t>(slot.unit)] = -1;
  slot.unit = unit;
  slot_of_[static_cast<std::size_t>(unit)] = best;
  touch(unit);
  return place;
}

UnitSlots::Place UnitSlots::take(int unit) {
  if (const auto place = take_ahead(unit)) return *place;
  slots_.push_back({unit_bytes_[static_cast<std::size_t>(unit)]});
  Place place = *take_ahead(unit);
  place.made = true;
  return place;
}

void UnitSlots::touch(int unit) {
  const int slot = slot_of(unit);
  if (slot >= 0) slots_[static_cast<std::size_t>(slot)].used = ++clock_;
}

void UnitSlots::set_pinned(int unit, bool pinned) {
  const int slot = slot_of(unit);
  if (slot >= 0) slots_[static_cast<std::size_t>(slot)].pinned = pinned;
}

void UnitSlots::drop(int unit) {
  const int slot = slot_of(unit);
  if (slot < 0) return;
  slots_[static_cast<std::size_t>(slot)].unit = -1;
  slots_[static_cast<std::size_t>(slot)].pinned = false;
  slot_of_[static_cast<std::size_t>(unit)] = -1;
}

}  // namespace af::train
