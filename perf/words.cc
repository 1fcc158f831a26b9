// SPDX-License-Identifier: Apache-2.0
#include "perf/words.h"

#include "common/error.h"

namespace af::perf {
namespace {

template <typename T>
struct Word {
  const char* name;   // ours
  const char* other;  // of nccl-tests
  T value;
};

constexpr Word<OperationKind> kOperations[] = {
    {"all_reduce", "AllReduce", OperationKind::all_reduce},
    {"broadcast", "Broadcast", OperationKind::broadcast},
    {"all_gather", "AllGather", OperationKind::all_gather},
    {"reduce_scatter", "ReduceScatter", OperationKind::reduce_scatter},
    {"barrier", "Barrier", OperationKind::barrier},
};
constexpr Word<DataType> kTypes[] = {
    {"i8", "int8", DataType::i8},    {"u8", "uint8", DataType::u8},
    {"i32", "int32", DataType::i32}, {"u32", "uint32", DataType::u32},
    {"i64", "int64", DataType::i64}, {"u64", "uint64", DataType::u64},
    {"f16", "half", DataType::f16},  {"bf16", "bfloat16", DataType::bf16},
    {"f32", "float", DataType::f32}, {"f64", "double", DataType::f64},
};
constexpr Word<ReduceOp> kReductions[] = {
    {"sum", "sum", ReduceOp::sum},
    {"avg", "avg", ReduceOp::avg},
    {"min", "min", ReduceOp::min},
    {"max", "max", ReduceOp::max},
};
constexpr Word<BackendKind> kBackends[] = {
    {"auto", "automatic", BackendKind::automatic},
    {"local", "local", BackendKind::local},
    {"mpi", "mpi", BackendKind::mpi},
    {"nccl", "nccl", BackendKind::nccl},
};

template <typename T, std::size_t kSize>
std::vector<T> parse(const Word<T> (&words)[kSize], const std::string& word, const char* what,
                     bool all_allowed) {
  std::vector<T> all;
  std::string names;
  for (const auto& candidate : words) {
    if (word == candidate.name || word == candidate.other) return {candidate.value};
    all.push_back(candidate.value);
    names += (names.empty() ? "" : ", ") + std::string(candidate.name);
  }
  if (all_allowed && word == "all") return all;
  throw Error::format("unknown {} '{}': one of {}{}", what, word, names,
                      all_allowed ? ", all" : "");
}

}  // namespace

std::vector<OperationKind> parse_operations(const std::string& word) {
  return parse(kOperations, word, "operation", true);
}

std::vector<DataType> parse_types(const std::string& word) {
  return parse(kTypes, word, "type", true);
}

std::vector<ReduceOp> parse_reductions(const std::string& word) {
  return parse(kReductions, word, "reduction", true);
}

BackendKind parse_backend(const std::string& word) {
  return parse(kBackends, word, "backend", false).front();
}

std::string operation_name(OperationKind kind) {
  for (const auto& word : kOperations) {
    if (word.value == kind) return word.name;
  }
  return "unknown";
}

std::string column_type(DataType type) {
  for (const auto& word : kTypes) {
    if (word.value == type) return word.other;
  }
  return "unknown";
}

}  // namespace af::perf
