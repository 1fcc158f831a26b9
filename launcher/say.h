// SPDX-License-Identifier: Apache-2.0
// Lines of af-launch itself for the person: on stderr, "af-launch: …", whole lines between those of
// the ranks. stdout belongs to the ranks alone.
#pragma once

#include <string>

#include "launcher/output_writer.h"

namespace af {

inline void say(OutputWriter& writer, const std::string& text) {
  writer.write(2, "af-launch: " + text + "\n");
}

}  // namespace af
