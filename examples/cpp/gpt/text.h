// SPDX-License-Identifier: Apache-2.0
// A text as tokens, one for each byte, and pieces of it to learn from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

// Bytes to [n] int64, and back.
at::Tensor to_tokens(const std::string& text);
std::string to_text(const std::vector<int64_t>& tokens);

// Pieces of `length` tokens, and with each the same one shifted by a token: what is to be learned.
struct Batch {
  at::Tensor tokens;  // int64 [n, length]
  at::Tensor next;    // likewise
};

class Text {
 public:
  // The last tenth is held out. Throws std::runtime_error if the file cannot be read, or is shorter
  // than what is asked of it.
  Text(const std::string& path, int64_t piece_length, at::Device device);

  int64_t pieces() const { return train_pieces_; }
  // Rows of an epoch. Their beginnings move from epoch to epoch, so that each byte is seen at other
  // places of a piece.
  Batch batch(const std::vector<int64_t>& rows, int64_t epoch) const;

  int64_t held_out_pieces() const { return held_out_pieces_; }
  Batch held_out(int64_t first, int64_t last) const;

  // The perplexity, on what is held out, of somebody who knows how often each byte comes, and no
  // more: what a model that has learned anything falls below.
  double unigram_perplexity() const;

 private:
  Batch cut(const at::Tensor& tokens, const std::vector<int64_t>& begins) const;

  int64_t length_;
  at::Tensor train_;     // [n]
  at::Tensor held_out_;  // [n]
  int64_t train_pieces_ = 0;
  int64_t held_out_pieces_ = 0;
};

}  // namespace gpt
