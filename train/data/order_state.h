// SPDX-License-Identifier: Apache-2.0
// Reading an OrderState that may lack something.
#pragma once

#include <string>
#include <vector>

#include "af/train/data_order.h"

namespace af::train {

// Throw af::Error for what is not there.
int64_t number_of(const OrderState& state, const std::string& name);
const std::vector<int64_t>& list_of(const OrderState& state, const std::string& name);

// The step that is begun (`dealt_to` 0: none).
void save_step(OrderState& state, int dealt_to, const std::vector<int>& dealt_as);
void restore_step(const OrderState& state, int& dealt_to, std::vector<int>& dealt_as);

}  // namespace af::train
