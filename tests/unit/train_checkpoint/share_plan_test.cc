// SPDX-License-Identifier: Apache-2.0
// What each rank writes of a checkpoint, and what the ranks tell each other before: no effects.
#include "train/checkpoint/share_plan.h"

#include <gtest/gtest.h>

#include "common/error.h"
#include "train/checkpoint/save_agreement.h"

namespace af::train {
namespace {

TEST(SharePlan, SharesCoverTheFileInWholeUnits) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, kShareUnit, kShareUnit + 1,
                               10 * kShareUnit - 5, uint64_t{1} << 40})
    for (const int world : {1, 2, 3, 7, 64}) {
      uint64_t end = 0;
      for (int rank = 0; rank < world; ++rank) {
        const ByteRange share = share_of(bytes, rank, world);
        EXPECT_EQ(share.begin, end);
        EXPECT_TRUE(share.end == bytes || share.end % kShareUnit == 0);
        EXPECT_LE(share.bytes(), bytes / static_cast<uint64_t>(world) + kShareUnit);
        end = share.end;
      }
      EXPECT_EQ(end, bytes) << world;
    }
}

TEST(SharePlan, WhatIsSmallIsOfRank0) {
  EXPECT_EQ(share_of(kShareUnit, 0, 4).bytes(), kShareUnit);
  EXPECT_EQ(share_of(kShareUnit, 1, 4).bytes(), 0U);
}

TEST(SharePlan, PiecesOfAllSharesAreEachEntryOnce) {
  std::vector<ZipLayout::Entry> entries;
  for (const uint64_t bytes :
       {uint64_t{300}, uint64_t{0}, 3 * kShareUnit, kShareUnit / 2, uint64_t{7}})
    entries.push_back({"data/" + std::to_string(entries.size()), bytes, "", 0, 0});
  const ZipLayout layout(entries);
  for (const int world : {1, 2, 3, 5, 9}) {
    std::vector<WrittenPart> parts;
    for (int rank = 0; rank < world; ++rank) {
      const ByteRange share = share_of(layout.directory_offset(), rank, world);
      for (const SharePiece& piece : pieces_of(layout, share)) {
        EXPECT_GT(piece.bytes, 0U);
        EXPECT_LE(piece.at + piece.bytes, share.bytes());
        EXPECT_EQ(share.begin + piece.at, layout.entries()[piece.entry].data + piece.first);
        parts.push_back({piece.entry, piece.first, {piece.bytes, 0}});
      }
    }
    EXPECT_NO_THROW(crcs_of(layout, parts)) << world;
  }
}

SaveOffer offer(uint64_t parameters, uint32_t layout, const std::string& name) {
  return {true, parameters, layout, name, std::string(5056, 'r'), std::string(16, 'd')};
}

TEST(SaveAgreement, OffersTravelAsWords) {
  std::vector<uint64_t> words = to_words(offer(17, 5, ".writing-a"));
  const std::vector<uint64_t> second = to_words({});
  ASSERT_EQ(words.size(), second.size());
  words.insert(words.end(), second.begin(), second.end());
  const std::vector<SaveOffer> offers = to_offers(words);
  ASSERT_EQ(offers.size(), 2U);
  EXPECT_TRUE(offers[0].saves);
  EXPECT_EQ(offers[0].parameters, 17U);
  EXPECT_EQ(offers[0].layout, 5U);
  EXPECT_EQ(offers[0].name, ".writing-a");
  EXPECT_EQ(offers[0].host_random, std::string(5056, 'r'));
  EXPECT_EQ(offers[0].device_random, std::string(16, 'd'));
  EXPECT_FALSE(offers[1].saves);
  EXPECT_EQ(offers[1].host_random, "");
  EXPECT_THROW(to_words(offer(1, 1, std::string(1000, 'x'))), Error);
}

TEST(SaveAgreement, ADriftIsNamed) {
  try {
    check_parameters({offer(1, 5, "n"), offer(2, 5, ""), offer(1, 5, ""), offer(0, 5, "")});
    FAIL() << "no drift seen";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1, 3 are not those of rank 0"),
              std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(check_parameters({offer(1, 5, "n"), offer(1, 6, "")}));
}

TEST(SaveAgreement, OnlyRanksThatAllSaveTheSameShare) {
  SaveOffer without = offer(1, 5, "");
  without.saves = false;
  EXPECT_TRUE(can_share({offer(1, 5, "n"), offer(1, 5, "")}));
  EXPECT_FALSE(can_share({offer(1, 5, "n")}));
  EXPECT_FALSE(can_share({offer(1, 5, ""), offer(1, 5, "")}));
  EXPECT_FALSE(can_share({offer(1, 5, "n"), offer(1, 6, "")}));
  EXPECT_FALSE(can_share({offer(1, 5, "n"), without}));
}

}  // namespace
}  // namespace af::train
