// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/zip_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "common/error.h"
#include "tests/unit/temporary_directory.h"
#include "train/checkpoint/archive_file.h"

namespace af::train {
namespace {

ZipLayout layout_of(const std::vector<uint64_t>& sizes) {
  std::vector<ZipLayout::Entry> entries;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    entries.push_back({"archive/data/" + std::to_string(i), sizes[i], "", 0, 0});
  return ZipLayout(std::move(entries));
}

template <typename Int>
Int int_at(const std::string& text, std::size_t at) {
  Int value = 0;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

struct Case {
  const char* name;
  std::vector<uint64_t> sizes;
};
class Layouts : public testing::TestWithParam<Case> {};

TEST_P(Layouts, EntriesFollowEachOtherAtMultiplesOf64) {
  const ZipLayout layout = layout_of(GetParam().sizes);
  uint64_t end = 0;
  for (std::size_t i = 0; i < layout.entries().size(); ++i) {
    const ZipLayout::Entry& entry = layout.entries()[i];
    EXPECT_EQ(entry.header, end);
    EXPECT_EQ(entry.data % 64, 0U);
    const std::string header = layout.header(i, 0x12345678);
    EXPECT_EQ(entry.header + header.size(), entry.data);
    EXPECT_EQ(int_at<uint32_t>(header, 0), 0x04034b50U);
    EXPECT_EQ(int_at<uint32_t>(header, 14), 0x12345678U);
    EXPECT_EQ(30U + int_at<uint16_t>(header, 26) + int_at<uint16_t>(header, 28), header.size());
    end = entry.data + entry.bytes;
  }
  EXPECT_EQ(layout.directory_offset(), end);
  EXPECT_EQ(layout.file_bytes(),
            end + layout.directory(std::vector<uint32_t>(layout.entries().size())).size());
}

INSTANTIATE_TEST_SUITE_P(ZipLayout, Layouts,
                         testing::Values(Case{"none", {}}, Case{"one", {24}}, Case{"empty", {0, 0}},
                                         Case{"odd", {1, 63, 64, 65, 1000}},
                                         Case{"beyond_32_bits", {5'000'000'000, 7, 4294967295, 1}},
                                         Case{"many", std::vector<uint64_t>(70'000, 3)}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(ZipLayout, WhatDoesNotFitInto32BitsIsInZip64Fields) {
  const ZipLayout layout = layout_of({5'000'000'000, 7});
  const std::string first = layout.header(0, 1);
  EXPECT_EQ(int_at<uint32_t>(first, 22), 0xffffffffU);
  const std::size_t extra = 30 + layout.entries()[0].name.size();
  EXPECT_EQ(int_at<uint16_t>(first, extra), 1U);
  EXPECT_EQ(int_at<uint64_t>(first, extra + 4), 5'000'000'000U);
  EXPECT_EQ(int_at<uint64_t>(first, extra + 12), 5'000'000'000U);
  const std::string directory = layout.directory({1, 2});
  // The end record: its locator of a zip64 end record, and a directory beyond 32 bits.
  EXPECT_EQ(int_at<uint32_t>(directory, directory.size() - 22 - 20), 0x07064b50U);
  EXPECT_EQ(int_at<uint32_t>(directory, directory.size() - 6), 0xffffffffU);
  // The second entry: its header's offset only.
  const std::size_t second = 46 + layout.entries()[0].name.size() + 4 + 16;
  EXPECT_EQ(int_at<uint32_t>(directory, second), 0x02014b50U);
  EXPECT_EQ(int_at<uint64_t>(directory, second + 46 + layout.entries()[1].name.size() + 4),
            layout.entries()[1].header);
}

TEST(ZipLayout, SumsJoinAsIfReadInOne) {
  const std::string text = "123456789";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const FileSum sum =
        join(sum_of(text.data(), cut), sum_of(text.data() + cut, text.size() - cut));
    EXPECT_EQ(sum.crc32, 0xcbf43926U) << cut;
    EXPECT_EQ(sum.bytes, 9U);
  }
}

TEST(ZipLayout, PartsThatAreMissingOrTwiceAreNamed) {
  const ZipLayout layout = layout_of({4, 6, 0});
  const auto part = [](std::size_t entry, uint64_t first, const std::string& text) {
    return WrittenPart{entry, first, sum_of(text.data(), text.size())};
  };
  const auto outcome = [&](std::vector<WrittenPart> parts) -> std::string {
    try {
      return std::to_string(crcs_of(layout, std::move(parts)).size());
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(outcome({part(1, 2, "cdef"), part(0, 0, "1234"), part(1, 0, "ab")}), "3");
  EXPECT_EQ(outcome({part(0, 0, "1234")}), "archive/data/1: 0 of its 6 bytes are written");
  EXPECT_EQ(outcome({part(0, 0, "1234"), part(1, 0, "ab"), part(1, 3, "def")}),
            "archive/data/1: bytes 2 to 3 of it are written by nobody");
  EXPECT_EQ(outcome({part(0, 0, "1234"), part(1, 0, "abc"), part(1, 2, "cdef")}),
            "archive/data/1: bytes 2 to 3 of it are written twice");
}

// Python's zipfile knows nothing of us.
TEST(ZipLayout, OthersReadTheArchiveAndItsSumIsKnownWithoutReadingIt) {
  const TemporaryDirectory temporary;
  const ZipLayout layout = layout_of({9, 0, 3'000'000, 5});
  const std::string large(3'000'000, 'x');
  ArchiveFile file(temporary / "a.zip", ArchiveFile::Open::create);
  std::vector<WrittenPart> parts;
  parts.push_back(file.write(layout, 3, 0, "hello", 5));
  parts.push_back(file.write(layout, 2, 1'000'000, large.data(), 2'000'000));
  parts.push_back(file.write(layout, 0, 0, "123456789", 9));
  parts.push_back(file.write(layout, 2, 0, large.data(), 1'000'000));
  EXPECT_THROW(file.write(layout, 3, 1, "hello", 5), Error);
  const FileSum sum = file.finish(layout, parts);
  file.sync_and_close();
  const FileSum read = sum_of_file(temporary / "a.zip");
  EXPECT_EQ(sum.bytes, read.bytes);
  EXPECT_EQ(sum.crc32, read.crc32);
  EXPECT_EQ(read.bytes, layout.file_bytes());

  std::ofstream(temporary / "read.py") << R"(
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as archive:
    assert archive.testzip() is None
    assert [i.file_size for i in archive.infolist()] == [9, 0, 3000000, 5], archive.infolist()
    assert archive.read("archive/data/3") == b"hello"
)";
  const std::string command = "/usr/bin/python3 '" + (temporary / "read.py").string() + "' '" +
                              (temporary / "a.zip").string() + "'";
  EXPECT_EQ(::system(command.c_str()), 0);
}

}  // namespace
}  // namespace af::train
