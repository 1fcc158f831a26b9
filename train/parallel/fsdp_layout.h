// SPDX-License-Identifier: Apache-2.0
// Where each parameter of a sharded model lies: a pure function.
//
// A unit's parameters of one type lie flat behind each other in a group, those with a gradient
// apart from those without. The group is padded to a multiple of the ranks, and rank r keeps the
// r-th part of it, its shard. All parts of a group have the same size, which no other group of the
// model has: so ranks that have come to different units ask for operations of different counts, and
// the communicator names them instead of mixing up their units.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace af::train {

struct ShardedParameter {
  std::size_t unit = 0;
  int64_t elements = 0;
  int type = 0;  // at::ScalarType
  std::size_t element_bytes = 4;
  bool trained = true;  // has a gradient
};

struct GroupLayout {
  int type = 0;
  std::size_t element_bytes = 4;
  bool trained = true;
  std::vector<std::size_t> parameters;  // indices into the argument
  std::vector<int64_t> offsets;         // of each, in elements from the group's start
  int64_t count = 0;                    // elements of a rank's shard
  std::size_t unit_offset = 0;          // bytes, in the memory of the whole unit
  std::size_t shard_offset = 0;         // bytes, in the memory of a rank's shards
};

struct UnitLayout {
  std::vector<GroupLayout> groups;
  std::size_t bytes = 0;  // of the whole unit; 0 if it has no parameters
};

struct ShardLayout {
  std::vector<UnitLayout> units;
  std::size_t shard_bytes = 0;  // of a rank's shards of all units
};

// Parameters and shards start at multiples of 64 bytes, for the vector units.
ShardLayout plan_shards(const std::vector<ShardedParameter>& parameters, std::size_t units,
                        int ranks);

// What rank `rank`'s shard holds of a parameter: `elements` of it from `in_parameter` on, which are
// those of the shard from `in_shard` on. Possibly none.
struct Overlap {
  int64_t in_parameter = 0;
  int64_t in_shard = 0;
  int64_t elements = 0;
};
Overlap overlap_of(int64_t offset, int64_t elements, int64_t count, int rank);

}  // namespace af::train
