// SPDX-License-Identifier: Apache-2.0
// Case B38: lines that sbatch takes for comments.
#include "common/batch_script.h"

#include <gtest/gtest.h>

#include "common/here_document.h"

namespace af {
namespace {

// Line numbers of the warnings.
std::vector<int> ignored(std::string_view script) {
  std::vector<int> lines;
  for (const ScriptWarning& warning : find_ignored_settings(script)) lines.push_back(warning.line);
  return lines;
}

TEST(IgnoredSettings, Table) {
  const struct {
    const char* what;
    const char* script;
    std::vector<int> expected;
  } table[] = {
      {"none", "#!/bin/bash\necho x\n", {}},
      {"empty", "", {}},
      {"in the head", "#!/bin/bash\n#SBATCH --af-max-workers=4\necho x\n", {}},
      {"behind comments and blank lines", "#!/bin/bash\n\n# note\n  \t\n#SBATCH --af-env=/x\n", {}},
      {"after the first command", "#!/bin/bash\nset -e\n#SBATCH --af-max-workers=4\n", {3}},
      {"indented with spaces", "#!/bin/bash\n  #SBATCH --af-max-workers=4\necho x\n", {2}},
      {"indented with a tab", "#!/bin/bash\n\t#SBATCH --af-max-workers=4\n", {2}},
      {"indented and after a command", "#!/bin/bash\nx\n  #SBATCH --af-n-workers=4\n", {3}},
      {"several", "#!/bin/bash\n #SBATCH --af-env=/x\nx\n#SBATCH --af-n-workers 2\n", {2, 4}},
      {"beside another option", "#!/bin/bash\nx\n#SBATCH -p kept --af-n-workers=2\n", {3}},
      {"a misspelled one", "#!/bin/bash\nx\n#SBATCH --af-max-worker=2\n", {3}},
      {"not af", "#!/bin/bash\nx\n#SBATCH --time=10\n", {}},
      {"small letters", "#!/bin/bash\n#sbatch --af-n-workers=2\n", {2}},
      {"commented out on purpose", "#!/bin/bash\n##SBATCH --af-n-workers=2\nx\n", {}},
      {"commented out with a blank", "#!/bin/bash\n# SBATCH --af-n-workers=2\nx\n", {}},
      {"in the comment of a directive", "#!/bin/bash\nx\n#SBATCH -N1 # --af-n-workers=2\n", {}},
      {"text about it", "#!/bin/bash\nx\n# write #SBATCH --af-n-workers=2 above\n", {}},
      {"no blank behind the word: a directive", "#!/bin/bash\n#SBATCH--af-n-workers=2\n", {}},
      {"no newline at the end", "#!/bin/bash\nx\n#SBATCH --af-n-workers=2", {3}},
      {"a here-document",
       "#!/bin/bash\ncat > j.sh <<EOF\n#!/bin/bash\n#SBATCH --af-n-workers=2\nEOF\n",
       {}},
      {"behind a here-document",
       "#!/bin/bash\ncat <<'E O'\nx\nE O\n#SBATCH --af-n-workers=2\n",
       {5}},
      {"two here-documents",
       "#!/bin/bash\ncat <<A <<B\n#SBATCH --af-env=/x\nA\n#SBATCH --af-env=/x\nB\n",
       {}},
      {"a here-document with tabs", "#!/bin/bash\ncat <<-E\n\t#SBATCH --af-env=/x\n\tE\n", {}},
      {"a shift is no here-document", "#!/bin/bash\necho $((1 << n))\n#SBATCH --af-env=/x\n", {3}},
      {"a here-string is none", "#!/bin/bash\ncat <<< x\n#SBATCH --af-env=/x\nx\n", {3}},
      {"a Python script", "#!/usr/bin/python3\n\"\"\"doc\"\"\"\n#SBATCH --af-env=/x\n", {3}},
  };
  for (const auto& row : table) EXPECT_EQ(ignored(row.script), row.expected) << row.what;
}

TEST(IgnoredSettings, SayWhatToDo) {
  const auto text_of = [](const char* script) { return find_ignored_settings(script).at(0).text; };
  EXPECT_EQ(text_of("#!/bin/sh\nset -e\n#SBATCH --af-max-workers=4  \n"),
            "line 3: Slurm ignores '#SBATCH --af-max-workers=4': it stands after the first command "
            "(line 2): move it above");
  EXPECT_EQ(text_of("#!/bin/sh\n  #SBATCH --af-env=/x\n"),
            "line 2: Slurm ignores '#SBATCH --af-env=/x': it is indented: start it in the first "
            "column");
  EXPECT_EQ(text_of("#!/bin/sh\n#Sbatch --af-env=/x\n"),
            "line 2: Slurm ignores '#Sbatch --af-env=/x': write #SBATCH in capitals");
}

TEST(ScriptSettings, AsSbatchReadsThem) {
  const auto seen = settings_in_script(
      "#!/bin/bash\n"
      "#SBATCH -p kept --af-n-workers=4 --time=10\n"
      "#SBATCH --af-env '/work/my env'\n"
      "\n"
      "#SBATCH --af-explain --af-cpus-per-worker=\"2\" # --af-gpus-per-worker=2\n"
      "##SBATCH --af-max-workers=9\n"
      " #SBATCH --af-max-workers=9\n"
      "#SBATCH --af-ram-per-worker-gb=1\\6\n"
      "echo\n"
      "#SBATCH --af-max-workers=9\n");
  const struct {
    int line;
    const char *name, *value;
  } expected[] = {{2, "af-n-workers", "4"},
                  {3, "af-env", "/work/my env"},
                  {5, "af-explain", ""},
                  {5, "af-cpus-per-worker", "2"},
                  {8, "af-ram-per-worker-gb", "16"}};
  ASSERT_EQ(seen.size(), std::size(expected));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].line, expected[i].line);
    EXPECT_EQ(seen[i].name, expected[i].name);
    EXPECT_EQ(seen[i].value, expected[i].value);
  }
}

TEST(HereDocuments, Table) {
  const struct {
    const char* line;
    std::vector<std::string> words;
  } table[] = {
      {"cat <<EOF", {"EOF"}},   {"cat << EOF > x", {"EOF"}}, {"cat <<'A B'", {"A B"}},
      {"cat <<\\EOF", {"EOF"}}, {"cat <<-EOF | x", {"EOF"}}, {"cat <<A; cat <<B", {"A", "B"}},
      {"echo '<<A'", {}},       {"echo \"<<A\"", {}},        {"x # <<A", {}},
      {"cat <<<A", {}},         {"echo \\<<A", {}},          {"x <<", {}},
      {"echo a#b <<A", {"A"}},
  };
  for (const auto& row : table) {
    std::vector<std::string> words;
    for (const HereDocument& document : here_documents_on(row.line)) words.push_back(document.word);
    EXPECT_EQ(words, row.words) << row.line;
  }
}

}  // namespace
}  // namespace af
