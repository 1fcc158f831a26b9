// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/world/ranks.h"

#include <stdexcept>
#include <vector>

namespace af::test {

WorldOptions elastic_options(const std::string& socket, std::chrono::milliseconds timeout) {
  WorldOptions options;
  options.socket = socket;
  options.elastic = true;
  options.communicator.backend = BackendKind::local;
  options.communicator.address = "127.0.0.1";
  options.communicator.timeout = timeout;
  options.client = "test";
  return options;
}

void sum_once(World& world, std::size_t count, bool at_checkpoint) {
  Communicator& communicator = world.communicator();
  const WorldFlags flags = world.flags(at_checkpoint);
  std::vector<float> values(count + 2, 1.0F);
  values[count] = flags.change ? 1.0F : 0.0F;
  values[count + 1] = flags.save ? 1.0F : 0.0F;
  communicator.all_reduce(values.data(), values.data(), values.size(), DataType::f32).synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] != float(communicator.world_size())) throw std::runtime_error("a wrong sum");
  }
  world.agree(values[count] != 0.0F, values[count + 1] != 0.0F);
}

std::string sum_until_told(World& world, std::size_t count,
                           const std::function<void(World&)>& on_world) {
  std::int64_t step = 0;
  bool fresh = true;
  while (true) {
    try {
      if (fresh && on_world) on_world(world);
      fresh = false;
      sum_once(world, count);
      world.step_done(++step);
      if (world.should_save()) {
        world.saved("/checkpoint", step);
        return "saved after " + std::to_string(step);
      }
      if (!world.should_change()) continue;
    } catch (const CommunicatorError&) {
    }
    if (world.next(step, false) == World::Next::leave) return "left after " + std::to_string(step);
    fresh = true;
  }
}

}  // namespace af::test
