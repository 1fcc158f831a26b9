// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/fsdp_slots.h"

#include <gtest/gtest.h>

#include "train/parallel/fsdp_order.h"

namespace af::train {
namespace {

TEST(UnitSlots, AreAsLargeAsTheTwoLargestUnits) {
  const UnitSlots slots({0, 10, 50, 40, 20});
  ASSERT_EQ(slots.slots(), 2u);
  EXPECT_EQ(slots.bytes_of(0), 50u);
  EXPECT_EQ(slots.bytes_of(1), 40u);
  EXPECT_EQ(UnitSlots({0, 10}).slots(), 1u);
  EXPECT_EQ(UnitSlots({0}).slots(), 0u);
}

TEST(UnitSlots, AUnitStaysUntilItsSlotIsNeeded) {
  UnitSlots slots({10, 10, 10});
  EXPECT_EQ(slots.take(0).evicted, -1);
  EXPECT_EQ(slots.take(1).evicted, -1);
  EXPECT_EQ(slots.slot_of(0), 0);
  slots.touch(0);
  const auto place = slots.take(2);
  EXPECT_EQ(place.evicted, 1);  // used less recently than 0
  EXPECT_FALSE(place.made);
  EXPECT_EQ(slots.slot_of(1), -1);
  EXPECT_EQ(slots.units(), (std::vector<int>{0, 2}));
}

TEST(UnitSlots, APinnedUnitIsNotEvicted) {
  UnitSlots slots({10, 10, 10, 10});
  slots.take(0);
  slots.pin(0);
  slots.take(1);
  slots.pin(1);
  EXPECT_FALSE(slots.take_ahead(2));
  EXPECT_TRUE(slots.take(2).made);  // they nest: a third is needed
  EXPECT_EQ(slots.slots(), 3u);
  slots.unpin(0);
  EXPECT_EQ(slots.take_ahead(3)->evicted, 0);
}

TEST(UnitSlots, ALargeUnitTakesTheSlotThatFits) {
  UnitSlots slots({100, 10, 10});
  EXPECT_EQ(slots.take(1).slot, 1);  // the smaller of two free ones
  slots.pin(1);
  EXPECT_EQ(slots.take(0).slot, 0);
  slots.drop(0);
  slots.drop(1);
  EXPECT_EQ(slots.take(2).slot, 1);
  EXPECT_EQ(slots.take_ahead(0)->slot, 0);
}

TEST(UnitSlots, ADroppedUnitsSlotIsFree) {
  UnitSlots slots({10, 10, 10});
  slots.take(0);
  slots.pin(0);
  slots.take(1);
  slots.drop(0);
  const auto place = slots.take_ahead(2);
  ASSERT_TRUE(place);
  EXPECT_EQ(place->evicted, -1);
  EXPECT_EQ(slots.slot_of(1), 1);
}

// The rule for one after the other, as the header of the runtime has it: the gathers that a step of
// five units takes.
TEST(UnitSlots, OfAStepTheLastTwoUnitsAreGatheredOnce) {
  UnitSlots slots(std::vector<std::size_t>(5, 10));
  UnitOrder order;
  std::vector<int> gathered;
  const auto need = [&](int unit) {
    if (slots.slot_of(unit) < 0) {
      slots.take(unit);
      gathered.push_back(unit);
    }
    slots.touch(unit);
    slots.pin(unit);
    const int next = order.next_after(unit);
    if (next < 0 || slots.slot_of(next) >= 0) return;
    if (slots.take_ahead(next)) gathered.push_back(next);
  };
  for (int step = 0; step < 3; ++step) {
    gathered.clear();
    for (int unit = 0; unit < 5; ++unit) {
      need(unit);
      slots.unpin(unit);
    }
    for (int unit = 4; unit >= 0; --unit) {
      need(unit);
      slots.drop(unit);
    }
    order.end_pass();
    EXPECT_EQ(gathered, (std::vector<int>{0, 1, 2, 3, 4, 2, 1, 0})) << step;
    EXPECT_EQ(slots.slots(), 2u);
  }
}

TEST(UnitOrder, SaysWhatCameNextInThePassBefore) {
  UnitOrder order;
  EXPECT_EQ(order.first(), -1);
  for (const int unit : {1, 2, 3, 3, 2, 1}) EXPECT_EQ(order.next_after(unit), -1);
  order.end_pass();
  EXPECT_EQ(order.first(), 1);
  std::vector<int> next;
  for (const int unit : {1, 2, 3, 3, 2, 1}) next.push_back(order.next_after(unit));
  EXPECT_EQ(next, (std::vector<int>{2, 3, 2, 2, 1, -1}));
}

TEST(UnitOrder, FindsItsWayBackAfterAnotherPath) {
  UnitOrder order;
  for (const int unit : {1, 2, 3, 4}) order.next_after(unit);
  order.end_pass();
  EXPECT_EQ(order.next_after(1), 2);
  EXPECT_EQ(order.next_after(9), -1);
  EXPECT_EQ(order.next_after(9), -1);
  EXPECT_EQ(order.next_after(3), 4);
  order.end_pass();
  EXPECT_EQ(order.next_after(1), 9);
}

TEST(UnitOrder, APassOfNothingTeachesNothing) {
  UnitOrder order;
  order.next_after(1);
  order.next_after(2);
  order.end_pass();
  order.end_pass();
  EXPECT_EQ(order.next_after(1), 2);
}

}  // namespace
}  // namespace af::train
