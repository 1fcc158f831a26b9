// SPDX-License-Identifier: Apache-2.0
#include "launcher/challenge.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "common/error.h"

namespace af {
namespace {

std::string hex(const unsigned char* bytes, size_t size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace

std::string random_hex(size_t bytes) {
  std::vector<unsigned char> buffer(bytes);
  size_t filled = 0;
  while (filled < bytes) {
    const ssize_t n = ::getrandom(buffer.data() + filled, bytes - filled, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw errno_error("cannot get random bytes");
    filled += static_cast<size_t>(n);
  }
  return hex(buffer.data(), bytes);
}

std::string keyed_answer(std::string_view secret, std::string_view label, std::string_view first,
                         std::string_view second) {
  const std::string text = fmt::format("{}\n{}\n{}", label, first, second);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest,
             &size) == nullptr)
    throw Error("libcrypto cannot compute an HMAC-SHA256");
  return hex(digest, size);
}

bool same_answer(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace af
