// SPDX-License-Identifier: Apache-2.0
// Proof that a peer knows the run's secret, without sending it: HMAC-SHA256 over both sides' nonces
// (libcrypto). Who answers a challenge and who checks one have different labels, so an answer
// cannot be sent back as a proof.
#pragma once

#include <string>
#include <string_view>

namespace af {

// 2 * bytes hex digits from the kernel's random source.
std::string random_hex(size_t bytes);

// Hex of HMAC-SHA256(secret, label "\n" first "\n" second).
std::string keyed_answer(std::string_view secret, std::string_view label, std::string_view first,
                         std::string_view second);

// Compares in constant time.
bool same_answer(std::string_view a, std::string_view b);

}  // namespace af
