// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/fsdp_agreement.h"

#include <ATen/Functions.h>

#include <algorithm>

#include <fmt/ranges.h>

#include "common/error.h"

namespace af::train {
namespace {

// From `root` to all.
std::string broadcast_text(Communicator& world, std::string text, int root, at::Device device) {
  const auto sizes = gather_numbers(world, {static_cast<int64_t>(text.size())}, device);
  const int64_t size = sizes[static_cast<std::size_t>(root)].front();
  if (size == 0) return {};
  text.resize(static_cast<std::size_t>(size));
  const at::Tensor bytes = at::from_blob(text.data(), {size}, at::kByte).to(device);
  world.broadcast(bytes.data_ptr(), bytes.data_ptr(), bytes.nbytes(), DataType::u8, root)
      .synchronize();
  const at::Tensor plain = bytes.cpu();
  return {static_cast<const char*>(plain.data_ptr()), static_cast<std::size_t>(size)};
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::vector<std::vector<int64_t>> gather_numbers(Communicator& world,
                                                 const std::vector<int64_t>& values,
                                                 at::Device device) {
  const auto ranks = static_cast<std::size_t>(world.world_size());
  std::vector<int64_t> all(values.size() * ranks);
  CallOptions call;
  call.blocking = true;
  if (device.is_cpu()) {
    world.all_gather(values.data(), all.data(), values.size(), DataType::i64, call);
  } else {
    const at::Tensor in = at::tensor(values, at::TensorOptions(at::kLong)).to(device);
    const at::Tensor out = at::empty({static_cast<int64_t>(all.size())}, in.options());
    world.all_gather(in.data_ptr(), out.data_ptr(), values.size(), DataType::i64).synchronize();
    const at::Tensor plain = out.cpu();
    std::copy_n(plain.data_ptr<int64_t>(), all.size(), all.begin());
  }
  std::vector<std::vector<int64_t>> by_rank;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(r * values.size());
    by_rank.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(values.size()));
  }
  return by_rank;
}

void require_same_lines(Communicator& world, const std::vector<std::string>& lines,
                        const std::string& what, at::Device device) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  const std::vector<std::string> first =
      split_lines(broadcast_text(world, world.rank() == 0 ? text : "", 0, device));
  int64_t differs = -1;
  for (std::size_t i = 0; i < std::max(lines.size(), first.size()) && differs < 0; ++i)
    if (i >= lines.size() || i >= first.size() || lines[i] != first[i])
      differs = static_cast<int64_t>(i);
  std::vector<int> ranks;
  int64_t earliest = static_cast<int64_t>(first.size());
  const auto all = gather_numbers(world, {differs}, device);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].front() < 0) continue;
    ranks.push_back(static_cast<int>(r));
    earliest = std::min(earliest, all[r].front());
  }
  if (ranks.empty()) return;
  const auto place = static_cast<std::size_t>(earliest);
  throw Error::format(
      "rank {} {} {} than rank 0, which has {}: all ranks need the same model and the same units",
      fmt::join(ranks, ", "), ranks.size() == 1 ? "has" : "have", what,
      place < first.size() ? first[place] : "nothing more");
}

void share_error(Communicator& world, const std::string& error, at::Device device) {
  const auto sizes = gather_numbers(world, {static_cast<int64_t>(error.size())}, device);
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    if (sizes[r].front() == 0) continue;
    const auto root = static_cast<int>(r);
    const std::string text = broadcast_text(world, world.rank() == root ? error : "", root, device);
    throw Error::format("rank {}: {}", r, text);
  }
}

}  // namespace af::train
