// SPDX-License-Identifier: Apache-2.0
// The run's journal, events.jsonl, and its short form, state.json (docs/events.md). One writer: the
// coordinator. Lines are appended whole, with one write each.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "launcher/output_writer.h"
#include "launcher/run_directory.h"

namespace af {

class Journal {
 public:
  // `common` is in every line: run, attempt, generation. Throws Error if the file cannot be opened.
  Journal(OutputWriter& writer, const RunDirectory& directory, nlohmann::ordered_json common);

  // {"t": now, "event": name, …common…, …fields…}
  void event(const std::string& name, const nlohmann::json& fields = nlohmann::json::object());
  // Of the lines from now on.
  void set_generation(int generation);
  // Merges into state.json and replaces the file atomically; a failure is dropped (the journal is
  // the truth).
  void state(const nlohmann::ordered_json& fields);

 private:
  OutputWriter& writer_;
  std::filesystem::path state_path_;
  nlohmann::ordered_json common_, state_;
  OutputWriter::File events_;
};

}  // namespace af
