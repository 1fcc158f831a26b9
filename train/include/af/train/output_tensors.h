// SPDX-License-Identifier: Apache-2.0
// The tensors in what a module's forward returned: a tensor, or pairs, tuples, optionals, vectors,
// arrays and maps of such, nested as they like. Numbers, enums and texts beside them are passed
// over; another type is an error of the compiler.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace af::train {

inline void collect_tensors(const at::Tensor& tensor, std::vector<at::Tensor>& into) {
  if (tensor.defined()) into.push_back(tensor);
}

template <typename>
inline constexpr bool kKnowsTensorsOf = false;

// First all are declared, so that they find each other.
template <typename T>
void collect_tensors(const T& value, std::vector<at::Tensor>& into);
template <typename T>
void collect_tensors(const std::vector<T>& values, std::vector<at::Tensor>& into);
template <typename T, std::size_t n>
void collect_tensors(const std::array<T, n>& values, std::vector<at::Tensor>& into);
template <typename T>
void collect_tensors(const std::optional<T>& value, std::vector<at::Tensor>& into);
template <typename A, typename B>
void collect_tensors(const std::pair<A, B>& pair, std::vector<at::Tensor>& into);
template <typename... T>
void collect_tensors(const std::tuple<T...>& values, std::vector<at::Tensor>& into);
template <typename K, typename V>
void collect_tensors(const std::map<K, V>& values, std::vector<at::Tensor>& into);
template <typename K, typename V>
void collect_tensors(const std::unordered_map<K, V>& values, std::vector<at::Tensor>& into);

template <typename T>
void collect_tensors(const T&, std::vector<at::Tensor>&) {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string> ||
                    kKnowsTensorsOf<T>,
                "return tensors, or standard containers, pairs and tuples of them, from a unit");
}
template <typename T>
void collect_tensors(const std::vector<T>& values, std::vector<at::Tensor>& into) {
  for (const auto& value : values) collect_tensors(value, into);
}
template <typename T, std::size_t n>
void collect_tensors(const std::array<T, n>& values, std::vector<at::Tensor>& into) {
  for (const auto& value : values) collect_tensors(value, into);
}
template <typename T>
void collect_tensors(const std::optional<T>& value, std::vector<at::Tensor>& into) {
  if (value) collect_tensors(*value, into);
}
template <typename A, typename B>
void collect_tensors(const std::pair<A, B>& pair, std::vector<at::Tensor>& into) {
  collect_tensors(pair.first, into);
  collect_tensors(pair.second, into);
}
template <typename... T>
void collect_tensors(const std::tuple<T...>& values, std::vector<at::Tensor>& into) {
  std::apply([&](const T&... value) { (collect_tensors(value, into), ...); }, values);
}
template <typename K, typename V>
void collect_tensors(const std::map<K, V>& values, std::vector<at::Tensor>& into) {
  for (const auto& [key, value] : values) collect_tensors(value, into);
}
template <typename K, typename V>
void collect_tensors(const std::unordered_map<K, V>& values, std::vector<at::Tensor>& into) {
  for (const auto& [key, value] : values) collect_tensors(value, into);
}

}  // namespace af::train
