// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/share_buffer.h"

#include <ATen/Functions.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace af::train {
namespace {

bool has_device_tensors(const State& state) {
  const std::vector<NamedTensor> all = tensors_of(state);
  return std::any_of(all.begin(), all.end(),
                     [](const NamedTensor& one) { return one.tensor.is_cuda(); });
}

at::Tensor make_memory(int64_t bytes, bool pinned) {
  const at::Tensor memory = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(pinned));
  // Fewer, larger pages: less to fault in, and less to look up in each copy. Inner pages only.
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<uintptr_t>(memory.data_ptr()) + kPage - 1) / kPage * kPage;
  const auto end =
      (reinterpret_cast<uintptr_t>(memory.data_ptr()) + memory.nbytes()) / kPage * kPage;
  if (!pinned && begin < end)
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // NOLINT
  return memory;
}

void copy_bytes(const at::Tensor& from, const SharePiece& piece, char* to) {
  const at::Tensor dense = from.detach().contiguous();
  if (dense.device().is_cpu()) {
    std::memcpy(to, static_cast<const char*>(dense.data_ptr()) + piece.first, piece.bytes);
    return;
  }
  const at::Tensor bytes = dense.view({-1}).view(at::kByte);
  at::from_blob(to, {static_cast<int64_t>(piece.bytes)}, at::kByte)
      .copy_(bytes.narrow(0, static_cast<int64_t>(piece.first), static_cast<int64_t>(piece.bytes)));
}

}  // namespace

void ShareBuffer::plan(const State& state, int rank, int world_size) {
  layout_.emplace(state);
  const ByteRange range = share_of(layout_->zip.directory_offset(), rank, world_size);
  pieces_ = pieces_of(layout_->zip, range);
  const bool pinned = has_device_tensors(state);
  if (!memory_.defined() || memory_.nbytes() < range.bytes() || memory_.is_pinned() != pinned) {
    memory_ = at::Tensor();  // not both at once
    memory_ = make_memory(static_cast<int64_t>(range.bytes()), pinned);
    untouched_ = true;
  }
}

void ShareBuffer::touch() {
  if (std::exchange(untouched_, false)) std::memset(memory_.data_ptr(), 0, memory_.nbytes());
}

void ShareBuffer::copy(const State& state) {
  std::map<std::size_t, const std::string*> texts;
  for (const StateLayout::Text& one : layout_->texts) texts.emplace(one.entry, &one.text);
  std::map<std::size_t, at::Tensor> tensors;
  for (const NamedTensor& one : tensors_of(state))
    tensors.emplace(layout_->tensors[layout_->by_name.at(one.name)].entry, one.tensor);
  char* memory = static_cast<char*>(memory_.data_ptr());
  for (const SharePiece& piece : pieces_) {
    const auto text = texts.find(piece.entry);
    if (text != texts.end())
      std::memcpy(memory + piece.at, text->second->data() + piece.first, piece.bytes);
    else
      copy_bytes(tensors.at(piece.entry), piece, memory + piece.at);
  }
}

std::vector<WrittenPart> ShareBuffer::write(ArchiveFile& file) const {
  std::vector<WrittenPart> parts;
  const char* memory = static_cast<const char*>(memory_.data_ptr());
  for (const SharePiece& piece : pieces_)
    parts.push_back(
        file.write(layout_->zip, piece.entry, piece.first, memory + piece.at, piece.bytes));
  return parts;
}

}  // namespace af::train
