// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/model_agreement.h"

#include <ATen/Functions.h>
#include <libdeflate.h>

#include <fmt/ranges.h>

#include "common/error.h"

namespace af::train {

ModelFingerprint fingerprint_of(const torch::nn::Module& model, const std::string& more) {
  ModelFingerprint print;
  std::string text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    text += fmt::format("{} {} [{}] {};", name, c10::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ","),
                        tensor.requires_grad());
    ++print.tensors;
    print.elements += static_cast<uint64_t>(tensor.numel());
  };
  for (const auto& item : model.named_parameters()) add(item.key(), item.value());
  for (const auto& item : model.named_buffers()) add(item.key(), item.value());
  text += more;
  print.checksum = libdeflate_crc32(0, text.data(), text.size());
  return print;
}

void check_same_model(std::size_t rank, const ModelFingerprint& theirs,
                      const ModelFingerprint& rank_0) {
  if (theirs.checksum == rank_0.checksum) return;
  throw Error::format(
      "rank {} has another model than rank 0 ({} tensors with {} elements, against {} with {}): "
      "names, shapes and types must be the same on all ranks, and what is kept with it",
      rank, theirs.tensors, theirs.elements, rank_0.tensors, rank_0.elements);
}

std::vector<uint64_t> gather_numbers(Communicator& world, std::vector<uint64_t> mine,
                                     at::Device device) {
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor in = at::from_blob(mine.data(), {count}, at::kLong).to(device);
  const at::Tensor out = at::empty({count * world.world_size()}, in.options());
  world.all_gather(in.data_ptr(), out.data_ptr(), mine.size(), DataType::u64).synchronize();
  const at::Tensor all = out.cpu();
  const int64_t* values = all.data_ptr<int64_t>();
  return std::vector<uint64_t>(values, values + all.numel());
}

}  // namespace af::train
