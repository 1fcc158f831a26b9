// SPDX-License-Identifier: Apache-2.0
#include "launcher/journal.h"

#include <fcntl.h>

#include <chrono>

#include "common/atomic_file.h"
#include "common/error.h"

namespace af {
namespace {

// Output of programs and names of files may be no UTF-8; a journal line must be written all the
// same.
std::string dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Journal::Journal(OutputWriter& writer, const RunDirectory& directory, nlohmann::ordered_json common)
    : writer_(writer), state_path_(directory.state()), common_(std::move(common)), state_(common_) {
  const std::string path = directory.events().string();
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) throw errno_error("cannot open " + path);
  events_ = std::make_shared<const UniqueFd>(std::move(file));
}

void Journal::event(const std::string& name, const nlohmann::json& fields) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  nlohmann::ordered_json line;
  line["t"] = now;
  line["event"] = name;
  for (const auto& [key, value] : common_.items()) line[key] = value;
  // A rank's report may have any fields: they do not replace the journal's own.
  for (const auto& [key, value] : fields.items()) line.emplace(key, value);
  writer_.write(events_, dump(line) + "\n");
}

void Journal::set_generation(int generation) {
  common_["generation"] = state_["generation"] = generation;
}

void Journal::state(const nlohmann::ordered_json& fields) {
  state_.update(fields);
  writer_.run([path = state_path_, text = dump(state_) + "\n"] {
    try {
      write_file_atomically(path, text);
    } catch (const Error&) {
      // Said already by whatever else cannot write there.
    }
  });
}

}  // namespace af
