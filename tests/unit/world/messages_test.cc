// SPDX-License-Identifier: Apache-2.0
// Lines of the session protocol, and what is asked for and agreed on.
#include "collectives/world/messages.h"

#include <gtest/gtest.h>

#include "collectives/world/generation.h"

namespace af::test {
namespace {

using Kind = Event::Kind;

TEST(Messages, EventsAreRead) {
  struct Case {
    const char* line;
    Kind kind;
  };
  for (const Case& one : std::initializer_list<Case>{
           {R"({"event": "change", "when": "step"})", Kind::change},
           {R"({"event": "change", "when": "checkpoint"})", Kind::change},
           {R"({"event": "lost", "generation": 3, "why": "x"})", Kind::lost},
           {R"({"event": "leave", "why": "x"})", Kind::leave},
           {R"({"event": "notice", "reason": "x", "deadline": 5, "all": true})", Kind::notice},
           {R"({"event": "save", "reason": "x", "deadline": null})", Kind::save},
           {R"({"event": "world", "generation": 0, "rank": 0, "world_size": 1})", Kind::world},
           {R"({"event": "of a later version", "generation": "?"})", Kind::none},
           {R"({"id": 5, "ok": true})", Kind::none},
           {R"({"ok": false, "error": "no such op"})", Kind::none},
       }) {
    EXPECT_EQ(int(parse_event(one.line).kind), int(one.kind)) << one.line;
  }
}

TEST(Messages, WhatTheySayIsKept) {
  EXPECT_FALSE(parse_event(R"({"event": "change", "when": "step"})").at_checkpoint);
  EXPECT_TRUE(parse_event(R"({"event": "change", "when": "checkpoint"})").at_checkpoint);
  const Event lost = parse_event(R"({"event": "lost", "generation": 3, "why": "n2 is gone"})");
  EXPECT_EQ(lost.generation, 3u);
  EXPECT_EQ(lost.why, "n2 is gone");
  const Event notice =
      parse_event(R"({"event": "notice", "reason": "preempted", "deadline": 1.5, "all": false})");
  EXPECT_EQ(notice.why, "preempted");
  EXPECT_EQ(notice.deadline, 1.5);
  EXPECT_FALSE(notice.whole_job);
  const Event save = parse_event(R"({"event": "save", "reason": "time limit", "deadline": null})");
  EXPECT_FALSE(save.deadline.has_value());
  EXPECT_TRUE(save.whole_job);
  const Event world = parse_event(
      R"({"event": "world", "generation": 7, "rank": 1, "world_size": 2, "members":
          [{"was": 2, "step": 40, "in_step": true}, {"was": -1, "step": -1, "in_step": false}],
          "environment": {"RANK": "1", "AF_BACKEND": "local"}, "later": "more"})");
  EXPECT_EQ(world.world.generation, 7u);
  EXPECT_EQ(world.world.rank, 1);
  ASSERT_EQ(world.world.members.size(), 2u);
  EXPECT_EQ(world.world.members[0].was, 2);
  EXPECT_EQ(world.world.members[0].step, 40);
  EXPECT_TRUE(world.world.members[0].in_step);
  EXPECT_EQ(world.world.members[1].was, -1);
  EXPECT_EQ(world.world.environment.at("AF_BACKEND"), "local");
}

TEST(Messages, WhatMakesNoSenseIsRefused) {
  for (const char* line :
       {"", "no JSON", "[1]", R"({"event": "lost"})", R"({"event": "lost", "generation": "x"})",
        R"({"event": "world", "generation": 0, "rank": 0})",
        R"({"event": "world", "generation": 0, "rank": 2, "world_size": 2})",
        R"({"event": "world", "generation": 0, "rank": -1, "world_size": 2})",
        R"({"event": "world", "generation": 0, "rank": 0, "world_size": 0})",
        R"({"event": "world", "generation": 0, "rank": 0, "world_size": 2, "members": [{}]})",
        R"({"event": "world", "generation": 0, "rank": 0, "world_size": 1, "environment": 3})",
        R"({"event": "world", "generation": 0, "rank": 0, "world_size": 1,
            "environment": {"A": 1}})",
        R"({"event": "notice", "reason": "x", "deadline": "soon"})"}) {
    EXPECT_THROW((void)parse_event(line), CommunicatorError) << line;
  }
}

TEST(Messages, LinesAreWritten) {
  EXPECT_EQ(hello_line("python 0.1.0"), R"({"client":"python 0.1.0","op":"hello"})");
  EXPECT_EQ(arrive_line(-1, -1, false),
            R"({"generation":-1,"in_step":false,"op":"arrive","step":-1})");
  EXPECT_EQ(first_step_line(3, 9), R"({"generation":3,"op":"first_step","step":9})");
  EXPECT_EQ(finished_line(), R"({"op":"finished"})");
  EXPECT_EQ(saved_line("/a\xff/b", 9),
            "{\"op\":\"saved\",\"path\":\"/a\xef\xbf\xbd/b\",\"step\":9}");
  EXPECT_EQ(to_json(WorldNotice{"r", std::nullopt, true}),
            R"({"all":true,"deadline":null,"reason":"r"})");
  EXPECT_EQ(to_json(std::map<std::string, std::string>{{"RANK", "1"}}), R"({"RANK":"1"})");
  EXPECT_TRUE(is_object_line(R"({"op": "report"})"));
  for (const char* bad : {"", "x", "[]", "{\"a\":\n1}"}) EXPECT_FALSE(is_object_line(bad)) << bad;
}

TEST(Wishes, AChangeIsAskedForUntilItIsAgreedOn) {
  Wishes wishes;
  EXPECT_FALSE(wishes.flags(true).change);
  wishes.ask_change(true);  // at the next checkpoint
  EXPECT_FALSE(wishes.flags(false).change);
  EXPECT_TRUE(wishes.flags(true).change);
  wishes.ask_change(false);  // at the next step, which is sooner
  EXPECT_TRUE(wishes.flags(false).change);
  wishes.ask_change(true);
  EXPECT_TRUE(wishes.flags(false).change);
  EXPECT_FALSE(wishes.change_agreed());
  wishes.agree(true, false);
  EXPECT_TRUE(wishes.change_agreed());
  EXPECT_FALSE(wishes.flags(true).change);
  wishes.agree(false, false);  // a later reduction takes nothing back
  EXPECT_TRUE(wishes.change_agreed());
  EXPECT_FALSE(wishes.save_agreed());
}

TEST(Wishes, AnotherRankMayHaveAsked) {
  Wishes wishes;
  wishes.agree(false, true);
  EXPECT_TRUE(wishes.save_agreed());
  wishes.ask_save();  // the word for what is agreed on already
  EXPECT_FALSE(wishes.flags(false).save);
}

}  // namespace
}  // namespace af::test
