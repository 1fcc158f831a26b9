// SPDX-License-Identifier: Apache-2.0
#include "examples/cpp/gpt/text.h"

#include <ATen/Functions.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gpt {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::runtime_error("cannot read the text " + path);
  return text;
}

at::Tensor counts_of(const at::Tensor& tokens) {
  return at::bincount(tokens, /*weights=*/{}, /*minlength=*/256).to(at::kDouble);
}

}  // namespace

at::Tensor to_tokens(const std::string& text) {
  return at::tensor(
      std::vector<int64_t>(reinterpret_cast<const unsigned char*>(text.data()),
                           reinterpret_cast<const unsigned char*>(text.data()) + text.size()),
      at::kLong);
}

std::string to_text(const std::vector<int64_t>& tokens) {
  return {tokens.begin(), tokens.end()};
}

Text::Text(const std::string& path, int64_t piece_length, at::Device device)
    : length_(piece_length) {
  const at::Tensor all = to_tokens(read(path)).to(device);
  const int64_t held_out = all.numel() / 10;
  train_ = all.slice(0, 0, all.numel() - held_out);
  held_out_ = all.slice(0, all.numel() - held_out);
  // One piece less than there is room for, so that all can begin a bit later.
  train_pieces_ = (train_.numel() - 1) / length_ - 1;
  held_out_pieces_ = (held_out_.numel() - 1) / length_;
  if (train_pieces_ < 1 || held_out_pieces_ < 1)
    throw std::runtime_error(path + " is too short: " + std::to_string(all.numel()) +
                             " bytes make no two pieces of " + std::to_string(length_) +
                             " to learn from and one to test with");
}

Batch Text::cut(const at::Tensor& tokens, const std::vector<int64_t>& begins) const {
  const at::Tensor places = at::tensor(begins, at::kLong).to(tokens.device()).unsqueeze(1) +
                            at::arange(length_, tokens.options()).unsqueeze(0);
  return {tokens.take(places), tokens.take(places + 1)};
}

Batch Text::batch(const std::vector<int64_t>& rows, int64_t epoch) const {
  const int64_t shift = epoch * (length_ / 3 + 1) % length_;
  std::vector<int64_t> begins;
  for (const int64_t row : rows) begins.push_back(row * length_ + shift);
  return cut(train_, begins);
}

Batch Text::held_out(int64_t first, int64_t last) const {
  std::vector<int64_t> begins;
  for (int64_t row = first; row < last; ++row) begins.push_back(row * length_);
  return cut(held_out_, begins);
}

double Text::unigram_perplexity() const {
  const at::Tensor odds = (counts_of(train_) + 1) / (train_.numel() + 256);
  const at::Tensor counts = counts_of(held_out_);
  return (-(counts * odds.log()).sum() / counts.sum()).exp().item<double>();
}

}  // namespace gpt
