// SPDX-License-Identifier: Apache-2.0
// What stands in a TensorBoard event file: records of TensorFlow's format (a length and the data,
// each with a masked CRC-32C), whose data are Event messages of TensorFlow's event.proto. So few
// fields are needed that they are encoded by hand.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "af/train/callback.h"

namespace af::train {

// Castagnoli's polynomial, as in RFC 3720.
uint32_t crc32c(std::string_view bytes);
// A CRC over data with CRCs in it is weak: TensorFlow rotates it and adds a constant.
uint32_t masked_crc32c(std::string_view bytes);

// 8 bytes length | masked CRC of these | data | masked CRC of the data; little-endian.
std::string record_of(std::string_view data);

// Events. `time`: seconds since 1970.
std::string file_version_event(double time);  // the first of every file
std::string scalars_event(double time, int64_t step, const Metrics& metrics);

}  // namespace af::train
