// SPDX-License-Identifier: Apache-2.0
// Case B03: what scontrol answers to each list, as tests/cluster/test_hostlist.py asks it.
#include "common/hostlist.h"

#include <gtest/gtest.h>

#include "common/error.h"

namespace af {
namespace {

using Names = std::vector<std::string>;

TEST(Hostlist, Table) {
  const struct {
    const char* list;
    Names expected;
  } table[] = {
      {"", {}},
      {"n1", {"n1"}},
      {"a,b", {"a", "b"}},
      {"b,a", {"b", "a"}},
      {"n1,n1", {"n1", "n1"}},
      {"n[1,2]", {"n1", "n2"}},
      {"n-x[01-03]", {"n-x01", "n-x02", "n-x03"}},
      {"a,b[001,003],c", {"a", "b001", "b003", "c"}},
      {"n[8-11]", {"n8", "n9", "n10", "n11"}},
      {"n[08-11,3]", {"n08", "n09", "n10", "n11", "n3"}},
      {"n[098-101]", {"n098", "n099", "n100", "n101"}},
      {"n[1-02]", {"n1", "n2"}},
      {"n[0-0]", {"n0"}},
      {"n1-3", {"n1-3"}},
      {"a,,b", {"a", "b"}},
      {"n[1-2],", {"n1", "n2"}},
      {"r[1-2]n[01-02]", {"r1n01", "r1n02", "r2n01", "r2n02"}},
      {"r[1-2]n[01-02],z", {"r1n01", "r1n02", "r2n01", "r2n02", "z"}},
      // Slurm 22.05 itself refuses a suffix; later versions write it.
      {"n[1-2]-ib", {"n1-ib", "n2-ib"}},
      {"r[1-2]n[5]x", {"r1n5x", "r2n5x"}},
  };
  for (const auto& row : table) EXPECT_EQ(expand_hostlist(row.list), row.expected) << row.list;
}

TEST(Hostlist, RefusesWhatIsNoList) {
  for (const char* wrong :
       {"n[1-2", "n]", "n[]", "n[3-1]", "n[a-b]", "n[1,,2]", "n[[1]]", "n[1-]", "n[-1]", "n[1-2-3]",
        "n[ 1]", "n[1-100000]", "a[1-999]b[1-999]", "n[1-9999999999]", "n[1-60000],m[1-60000]"}) {
    try {
      expand_hostlist(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(wrong), std::string::npos) << error.what();
    }
  }
}

TEST(TasksPerNode, Table) {
  const struct {
    const char* list;
    std::vector<int> expected;
  } table[] = {
      {"", {}},
      {"1", {1}},
      {"2(x2),1", {2, 2, 1}},
      {"4(x3)", {4, 4, 4}},
      {"1,2,3", {1, 2, 3}},
      {"16(x1),0", {16, 0}},
  };
  for (const auto& row : table)
    EXPECT_EQ(expand_tasks_per_node(row.list), row.expected) << row.list;
}

TEST(TasksPerNode, RefusesWhatIsNoList) {
  for (const char* wrong :
       {"x", "2(x2", "2x2", "2(x)", "(x2)", "2(x2),", ",1", "-1", "1(x9999999)", "2(2)", "1 "})
    EXPECT_THROW(expand_tasks_per_node(wrong), Error) << wrong;
}

}  // namespace
}  // namespace af
