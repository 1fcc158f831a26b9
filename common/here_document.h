// SPDX-License-Identifier: Apache-2.0
// Finds the here-documents of a shell script, line by line, well enough to know which lines are
// text of another file. Not a shell parser.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace af {

struct HereDocument {
  std::string word;         // what ends it
  bool strip_tabs = false;  // <<-
};

// Those that start on this line, in order ("cat <<A <<'B'"). Not "<<<", nothing in quotes or in a
// comment.
std::vector<HereDocument> here_documents_on(std::string_view line);

// The index of the line after the one that ends the here-document, searching from `first`; `first`
// itself if nothing ends it: then it was none ("1 << n" in Python or in $((…))).
std::size_t after_here_document(std::span<const std::string_view> lines, std::size_t first,
                                const HereDocument& document);

}  // namespace af
