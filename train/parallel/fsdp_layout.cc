// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/fsdp_layout.h"

#include <algorithm>
#include <set>

namespace af::train {
namespace {

constexpr std::size_t kAlignment = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

GroupLayout& group_for(UnitLayout& unit, const ShardedParameter& one) {
  for (GroupLayout& group : unit.groups)
    if (group.type == one.type && group.trained == one.trained) return group;
  GroupLayout& group = unit.groups.emplace_back();
  group.type = one.type;
  group.element_bytes = one.element_bytes;
  group.trained = one.trained;
  return group;
}

}  // namespace

ShardLayout plan_shards(const std::vector<ShardedParameter>& parameters, std::size_t units,
                        int ranks) {
  ShardLayout layout;
  layout.units.resize(units);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ShardedParameter& one = parameters[i];
    GroupLayout& group = group_for(layout.units[one.unit], one);
    const auto align = static_cast<int64_t>(kAlignment / one.element_bytes);
    group.parameters.push_back(i);
    group.offsets.push_back(round_up(group.count, align));
    group.count = group.offsets.back() + one.elements;  // of all ranks, so far
  }
  std::set<int64_t> taken;
  for (UnitLayout& unit : layout.units)
    for (GroupLayout& group : unit.groups) {
      const auto align = static_cast<int64_t>(kAlignment / group.element_bytes);
      group.count = std::max(align, round_up((group.count + ranks - 1) / ranks, align));
      while (!taken.insert(group.count).second) group.count += align;
      const std::size_t bytes = static_cast<std::size_t>(group.count) * group.element_bytes;
      group.unit_offset = unit.bytes;
      group.shard_offset = layout.shard_bytes;
      unit.bytes += bytes * static_cast<std::size_t>(ranks);
      layout.shard_bytes += bytes;
    }
  return layout;
}

Overlap overlap_of(int64_t offset, int64_t elements, int64_t count, int rank) {
  const int64_t first = std::max(offset, count * rank);
  const int64_t last = std::min(offset + elements, count * (rank + 1));
  if (last <= first) return {};
  return {first - offset, first - count * rank, last - first};
}

}  // namespace af::train
