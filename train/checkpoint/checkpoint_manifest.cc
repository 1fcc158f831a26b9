// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/checkpoint_manifest.h"

#include <nlohmann/json.hpp>

#include "common/atomic_file.h"
#include "common/error.h"

namespace af::train {

namespace fs = std::filesystem;
using nlohmann::json;

std::string manifest_of(const fs::path& directory, int64_t step, const FileSums& known) {
  json files = json::object();
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_directory() && !entry.is_symlink()) continue;
    const std::string name = entry.path().lexically_relative(directory).string();
    if (name == kManifestName) continue;
    if (entry.is_symlink() || !entry.is_regular_file())
      throw Error::format("checkpoint {}: {} is not a plain file", directory.string(), name);
    const auto found = known.find(name);
    const FileSum sum = found != known.end() ? found->second : sum_of_file(entry.path());
    files[name] = {{"bytes", sum.bytes}, {"crc32", fmt::format("{:08x}", sum.crc32)}};
  }
  return json{{"format", 1}, {"step", step}, {"files", std::move(files)}}.dump(2) + "\n";
}

void verify_manifest(const fs::path& directory, int64_t step, Depth depth) {
  const std::string text = read_file(directory / kManifestName);
  try {
    const json manifest = json::parse(text);
    if (manifest.at("format").get<int>() != 1)
      throw Error::format("its manifest has format {}: a newer af wrote it",
                          manifest.at("format").get<int>());
    if (manifest.at("step").get<int64_t>() != step)
      throw Error::format("its manifest is of step {}", manifest.at("step").get<int64_t>());
    for (const auto& [name, entry] : manifest.at("files").items()) {
      const auto bytes = entry.at("bytes").get<uint64_t>();
      // The size first: it is enough for a torn file, and costs no reading.
      std::error_code error;
      const auto found = fs::file_size(directory / name, error);
      if (error) throw Error::format("{}: {}", name, error.message());
      if (found != bytes) throw Error::format("{} has {} bytes instead of {}", name, found, bytes);
      if (depth == Depth::kSizes) continue;
      const std::string crc = fmt::format("{:08x}", sum_of_file(directory / name).crc32);
      if (crc != entry.at("crc32").get<std::string>())
        throw Error::format("{} has the CRC-32 {} instead of {}", name, crc,
                            entry.at("crc32").get<std::string>());
    }
  } catch (const json::exception& error) {
    throw Error::format("its {} is not a manifest: {}", kManifestName, error.what());
  }
}

}  // namespace af::train
