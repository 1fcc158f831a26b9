// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/replica_checkpoint.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "af/train/random_state.h"
#include "train/checkpoint/parameter_hash.h"
#include "train/checkpoint/share_plan.h"
#include "train/checkpoint/state_layout.h"
#include "train/parallel/model_agreement.h"

namespace af::train {
namespace {

constexpr char kRandom[] = "random";
constexpr char kHost[] = "host";
constexpr char kDevice[] = "device";

std::string to_text(const at::Tensor& bytes) {
  if (!bytes.defined()) return {};
  const at::Tensor plain = bytes.cpu().contiguous();
  return {static_cast<const char*>(plain.data_ptr()), plain.nbytes()};
}

at::Tensor to_tensor(const std::string& bytes) {
  const at::Tensor tensor =
      at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions(at::kByte));
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

// {"0": {"host": bytes, "device": bytes}, "1": …}
State random_of(const std::vector<SaveOffer>& offers) {
  State all = make_state();
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    State one = make_state();
    one.insert(kHost, to_tensor(offers[rank].host_random));
    if (!offers[rank].device_random.empty())
      one.insert(kDevice, to_tensor(offers[rank].device_random));
    all.insert(std::to_string(rank), one);
  }
  return all;
}

// Whether every rank finds the directory that rank 0 has made.
bool all_see(Communicator& world, at::Device device, const BackgroundSaver& saver,
             const std::string& name) {
  std::error_code ignored;
  const bool seen = std::filesystem::exists(saver.directory().root() / name, ignored);
  const std::vector<uint64_t> all = gather_numbers(world, {seen ? 1U : 0U}, device);
  return std::all_of(all.begin(), all.end(), [](uint64_t one) { return one != 0; });
}

}  // namespace

void ReplicaCheckpoint::agree(Communicator& world, at::Device device, BackgroundSaver* saver,
                              int64_t step, const State& state) {
  agreed_.reset();
  SaveOffer mine;
  const RandomState random = random_state(device);
  mine.host_random = to_text(random.host);
  mine.device_random = to_text(random.device);
  mine.saves = saver != nullptr;
  if (world.world_size() == 1) {
    agreed_ = Agreed{world.generation(), 0, false, {mine}};
    return;
  }
  mine.parameters = hash_of(state.at("model").toGenericDict());
  const StateLayout layout(state);
  mine.layout = layout.fingerprint();
  // Of a small state no other rank would write anything.
  if (saver != nullptr && world.rank() == 0 && layout.zip.directory_offset() > kShareUnit)
    mine.name = saver->make_directory(step);
  Agreed agreed{world.generation(), world.rank(), false,
                to_offers(gather_numbers(world, to_words(mine), device))};
  check_parameters(agreed.offers);
  // The same decision on all ranks: can_share() says so of what all of them have.
  agreed.shares = can_share(agreed.offers) && all_see(world, device, *saver, agreed.offers[0].name);
  agreed_ = std::move(agreed);
}

void ReplicaCheckpoint::save(BackgroundSaver* saver, int rank, uint64_t generation, int64_t step,
                             State state, std::function<bool()> lost) {
  std::optional<Agreed> agreed = std::exchange(agreed_, std::nullopt);
  if (agreed && agreed->generation != generation) agreed.reset();
  if (saver == nullptr) return;
  if (agreed) state.insert_or_assign(kRandom, random_of(agreed->offers));
  if (agreed && agreed->shares) {
    saver->save_share(step, state,
                      {agreed->rank, static_cast<int>(agreed->offers.size()),
                       agreed->offers[0].name, std::move(lost)});
  } else if (rank == 0) {
    saver->save(step, state);
  }
}

void restore_random(const State& state, uint64_t seed, int64_t step, int rank, at::Device device) {
  const auto found = state.find(kRandom);
  if (found == state.end() || !found->value().isGenericDict()) return;
  const State all = found->value().toGenericDict();
  const auto mine = all.find(std::to_string(rank));
  if (mine == all.end()) return seed_random(seed, step, rank, device);
  const State one = mine->value().toGenericDict();
  const auto tensor_at = [&](const char* name) {
    const auto at = one.find(name);
    return at == one.end() ? at::Tensor() : at->value().toTensor();
  };
  set_random_state({tensor_at(kHost), tensor_at(kDevice)}, device);
}

}  // namespace af::train
