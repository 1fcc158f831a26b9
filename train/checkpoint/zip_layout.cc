// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/zip_layout.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/error.h"

namespace af::train {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kMax32 = std::numeric_limits<uint32_t>::max();
constexpr std::size_t kMax16 = std::numeric_limits<uint16_t>::max();
constexpr std::size_t kHeaderBytes = 30;
constexpr std::size_t kZip64HeaderField = 4 + 16;
constexpr std::size_t kFieldHead = 4;
constexpr uint16_t kUtf8Names = 0x0800;
constexpr uint16_t kMidnight1980 = (1 << 5) | 1;  // the first day that zip knows

// Little-endian, as all of a zip file is.
class Bytes {
 public:
  template <typename Int>
  Bytes& put(Int value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      text_ += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
    return *this;
  }
  Bytes& put(const std::string& text) {
    text_ += text;
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

bool needs_zip64(uint64_t value) {
  return value >= kMax32;
}

uint32_t capped(uint64_t value) {
  return static_cast<uint32_t>(std::min(value, kMax32));
}

uint16_t version_needed(const ZipLayout::Entry& entry) {
  return needs_zip64(entry.bytes) || needs_zip64(entry.header) ? 45 : 20;
}

// What a header and the directory say of an entry in the same way.
void put_common(Bytes& to, const ZipLayout::Entry& entry, uint32_t crc) {
  to.put(version_needed(entry)).put(kUtf8Names).put(uint16_t{0});  // stored
  to.put(uint16_t{0}).put(kMidnight1980).put(crc);
  to.put(capped(entry.bytes)).put(capped(entry.bytes));
  to.put(static_cast<uint16_t>(entry.name.size()));
}

// Of the directory: only the values that do not fit, in this order.
std::string zip64_field(const ZipLayout::Entry& entry) {
  Bytes values;
  if (needs_zip64(entry.bytes)) values.put(entry.bytes).put(entry.bytes);
  if (needs_zip64(entry.header)) values.put(entry.header);
  const std::string text = values.take();
  if (text.empty()) return text;
  return Bytes().put(uint16_t{1}).put(static_cast<uint16_t>(text.size())).put(text).take();
}

std::size_t fixed_header_bytes(const ZipLayout::Entry& entry) {
  return kHeaderBytes + entry.name.size() + (needs_zip64(entry.bytes) ? kZip64HeaderField : 0);
}

}  // namespace

ZipLayout::ZipLayout(std::vector<Entry> entries) : entries_(std::move(entries)) {
  for (Entry& entry : entries_) {
    if (entry.name.size() > kMax16)
      throw Error::format("a name of {} bytes in an archive: \"{}…\"", entry.name.size(),
                          entry.name.substr(0, 60));
    if (entry.label.empty()) entry.label = entry.name;
    entry.header = directory_;
    const uint64_t least = entry.header + fixed_header_bytes(entry) + kFieldHead;
    entry.data = (least + kAlignment - 1) / kAlignment * kAlignment;
    directory_ = entry.data + entry.bytes;
  }
  file_bytes_ = directory_ + directory(std::vector<uint32_t>(entries_.size())).size();
}

std::string ZipLayout::header(std::size_t i, uint32_t crc) const {
  const Entry& entry = entries_.at(i);
  Bytes header;
  header.put(uint32_t{0x04034b50});
  put_common(header, entry, crc);
  const std::size_t padding = entry.data - entry.header - fixed_header_bytes(entry) - kFieldHead;
  const bool zip64 = needs_zip64(entry.bytes);
  header.put(static_cast<uint16_t>((zip64 ? kZip64HeaderField : 0) + kFieldHead + padding));
  header.put(entry.name);
  if (zip64) header.put(uint16_t{1}).put(uint16_t{16}).put(entry.bytes).put(entry.bytes);
  header.put(std::string("FB")).put(static_cast<uint16_t>(padding)).put(std::string(padding, 'Z'));
  return header.take();
}

std::string ZipLayout::directory(const std::vector<uint32_t>& crcs) const {
  Bytes directory;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const std::string extra = zip64_field(entry);
    directory.put(uint32_t{0x02014b50}).put(uint16_t{0});
    put_common(directory, entry, crcs.at(i));
    directory.put(static_cast<uint16_t>(extra.size()));
    directory.put(uint16_t{0}).put(uint16_t{0}).put(uint16_t{0}).put(uint32_t{0});
    directory.put(capped(entry.header)).put(entry.name).put(extra);
  }
  std::string text = directory.take();
  const uint64_t bytes = text.size();
  const uint64_t count = entries_.size();
  Bytes end;
  if (needs_zip64(directory_) || needs_zip64(bytes) || count >= kMax16) {
    end.put(uint32_t{0x06064b50}).put(uint64_t{44}).put(uint16_t{45}).put(uint16_t{45});
    end.put(uint32_t{0}).put(uint32_t{0}).put(count).put(count).put(bytes).put(directory_);
    end.put(uint32_t{0x07064b50}).put(uint32_t{0}).put(directory_ + bytes).put(uint32_t{1});
  }
  const auto short_count = static_cast<uint16_t>(std::min<uint64_t>(count, kMax16));
  end.put(uint32_t{0x06054b50}).put(uint16_t{0}).put(uint16_t{0});
  end.put(short_count).put(short_count).put(capped(bytes)).put(capped(directory_));
  end.put(uint16_t{0});
  return text + end.take();
}

std::vector<uint32_t> crcs_of(const ZipLayout& layout, std::vector<WrittenPart> parts) {
  std::sort(parts.begin(), parts.end(), [](const WrittenPart& a, const WrittenPart& b) {
    return std::pair(a.entry, a.first) < std::pair(b.entry, b.first);
  });
  const auto& entries = layout.entries();
  std::vector<FileSum> sums(entries.size());
  for (const WrittenPart& part : parts) {
    FileSum& sum = sums.at(part.entry);
    if (part.first != sum.bytes)
      throw Error::format("{}: bytes {} to {} of it are written {}", entries[part.entry].label,
                          std::min(part.first, sum.bytes), std::max(part.first, sum.bytes),
                          part.first < sum.bytes ? "twice" : "by nobody");
    sum = join(sum, part.sum);
  }
  std::vector<uint32_t> crcs;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (sums[i].bytes != entries[i].bytes)
      throw Error::format("{}: {} of its {} bytes are written", entries[i].label, sums[i].bytes,
                          entries[i].bytes);
    crcs.push_back(sums[i].crc32);
  }
  return crcs;
}

FileSum sum_of_archive(const ZipLayout& layout, const std::vector<uint32_t>& crcs) {
  FileSum sum;
  const auto add = [&](const std::string& text) {
    sum = join(sum, sum_of(text.data(), text.size()));
  };
  for (std::size_t i = 0; i < layout.entries().size(); ++i) {
    add(layout.header(i, crcs.at(i)));
    sum = join(sum, {layout.entries()[i].bytes, crcs[i]});
  }
  add(layout.directory(crcs));
  return sum;
}

}  // namespace af::train
