// SPDX-License-Identifier: Apache-2.0
// Which whole units are in memory: decides, and touches no memory itself.
//
// There are two slots, as large as the two largest units. A unit that is gathered gets one; it
// stays there, pinned while it computes, until the slot is needed for another. All decisions follow
// from the calls alone, so ranks that run the same units agree on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace af::train {

class UnitSlots {
 public:
  // By unit; units without bytes never ask for a slot.
  explicit UnitSlots(const std::vector<std::size_t>& unit_bytes);

  std::size_t slots() const { return slots_.size(); }
  std::size_t bytes_of(int slot) const { return slots_[static_cast<std::size_t>(slot)].bytes; }
  // -1 if the unit is in none.
  int slot_of(int unit) const { return slot_of_[static_cast<std::size_t>(unit)]; }
  std::vector<int> units() const;  // that are in a slot

  struct Place {
    int slot = 0;
    int evicted = -1;   // the unit that has lost this slot
    bool made = false;  // a new slot: more units are pinned at once than there were slots
  };
  // For a unit that is in none.
  Place take(int unit);
  // For a unit that is needed later: only if that costs neither a pinned unit nor a new slot.
  std::optional<Place> take_ahead(int unit);

  // The unit was used: others go before it.
  void touch(int unit);
  void pin(int unit) { set_pinned(unit, true); }
  void unpin(int unit) { set_pinned(unit, false); }
  // The slot of the unit, if it has one, is free.
  void drop(int unit);

 private:
  struct Slot {
    std::size_t bytes = 0;
    int unit = -1;
    bool pinned = false;
    int64_t used = 0;
  };
  void set_pinned(int unit, bool pinned);

  std::vector<std::size_t> unit_bytes_;
  std::vector<int> slot_of_;
  std::vector<Slot> slots_;
  int64_t clock_ = 0;
};

}  // namespace af::train
