// SPDX-License-Identifier: Apache-2.0
// The words of the command line: operations, types and reductions, as af and nccl-tests call them.
#pragma once

#include <string>
#include <vector>

#include "collectives/backend.h"

namespace af::perf {

// Each takes one word or "all"; throws Error that lists the good ones.
std::vector<OperationKind> parse_operations(const std::string& word);
std::vector<DataType> parse_types(const std::string& word);
std::vector<ReduceOp> parse_reductions(const std::string& word);
BackendKind parse_backend(const std::string& word);

// "all_reduce"
std::string operation_name(OperationKind kind);
// "float", as nccl-tests writes it in the table.
std::string column_type(DataType type);

}  // namespace af::perf
