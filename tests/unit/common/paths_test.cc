// SPDX-License-Identifier: Apache-2.0
// Cases B31 and B43: what is refused at submit, on a file system that is a table.
#include "common/paths.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/error.h"

namespace af {
namespace {

class FakeFiles : public FileView {
 public:
  std::set<std::string> directories, files, read_only;
  std::map<std::string, std::string> links;

  bool exists(const std::string& path) const override {
    return directories.contains(path) || files.contains(path);
  }
  bool is_directory(const std::string& path) const override { return directories.contains(path); }
  bool is_writable(const std::string& path) const override {
    return exists(path) && !read_only.contains(path);
  }
  std::string real_path(const std::string& path) const override {
    const auto link = links.find(path);
    return link == links.end() ? path : link->second;
  }
};

FakeFiles usual_files() {
  FakeFiles files;
  files.directories = {"/work",
                       "/work/ada",
                       "/work/ada/env",
                       "/work/ada/env/bin",
                       "/home",
                       "/home/ada",
                       "/work/group",
                       "/work/ada/project",
                       "/work/ada/project/.pixi/envs/default/bin",
                       "/work/ada/empty",
                       "/work/ada/link",
                       "/work/ada/link/bin",
                       "/tmp/x"};
  files.files = {"/work/ada/old.log", "/work/ada/fixed.log", "/work/ada/pixi/pixi.toml",
                 "/work/ada/env/bin/python", "/work/ada/pixi"};
  files.read_only = {"/work/group", "/work/ada/fixed.log"};
  files.links = {{"/work/ada/link", "/home/ada/env"}};
  return files;
}

const Storage kStorage{{"/work", "/depot"}, {"/home", "/work/private"}};

template <typename Function>
std::string refusal_of(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(AbsolutePath, Table) {
  const struct {
    const char *path, *directory, *expected;
  } table[] = {
      {"/a/b", "/x", "/a/b"}, {"b", "/x", "/x/b"},     {"../b", "/x/y", "/x/b"},
      {".", "/x", "/x"},      {"/a/b/", "/x", "/a/b"}, {"a//b", "/x", "/x/a/b"},
      {"/", "/x", "/"},       {"", "/x", "/x"},        {"./a/../b", "/x", "/x/b"},
  };
  for (const auto& row : table)
    EXPECT_EQ(absolute_path(row.path, row.directory), row.expected) << row.path;
}

TEST(JobsSee, TheLongestEntryDecides) {
  const struct {
    const char* path;
    bool seen;
  } table[] = {
      {"/work", true},      {"/work/ada", true},      {"/depot/cms/x", true},
      {"/home/ada", false}, {"/work/private", false}, {"/work/private/x", false},
      {"/works", false},    {"/etc", false},          {"/", false},
      {"/homes", false},
  };
  for (const auto& row : table) EXPECT_EQ(jobs_see(kStorage, row.path), row.seen) << row.path;
  EXPECT_TRUE(jobs_see({}, "/anywhere"));
  EXPECT_TRUE(jobs_see({{}, {"/home"}}, "/etc"));
  EXPECT_FALSE(jobs_see({{}, {"/home/"}}, "/home/ada"));
  EXPECT_TRUE(jobs_see({{"/home/shared"}, {"/home"}}, "/home/shared/x"));
}

TEST(EnvPrefix, Table) {
  const FakeFiles files = usual_files();
  const struct {
    const char *prefix, *message;
  } table[] = {
      {"/work/ada/env", ""},
      {"/work/ada/none", "--af-env: /work/ada/none does not exist"},
      {"/home/ada", "--af-env: /home/ada is not on storage that jobs see (/work, /depot)"},
      {"/opt/env", "--af-env: /opt/env is not on storage that jobs see (/work, /depot)"},
      {"/work/ada/empty", "--af-env: /work/ada/empty is not an environment: it has no bin/"},
      {"/work/ada/project",
       "--af-env: /work/ada/project is not an environment: it has no bin/; did you mean "
       "/work/ada/project/.pixi/envs/default?"},
      {"/work/ada/pixi",
       "--af-env: /work/ada/pixi is not an environment: it has no bin/; run 'pixi install' in it "
       "first"},
      {"/work/ada/env/bin",
       "--af-env: /work/ada/env/bin is not an environment: it has no bin/; did you mean "
       "/work/ada/env?"},
      {"/work/ada/env/bin/python",
       "--af-env: /work/ada/env/bin/python is not an environment: it has no bin/; did you mean "
       "/work/ada/env?"},
      {"/work/ada/link",
       "--af-env: /work/ada/link (which is /home/ada/env) is not on storage that jobs see (/work, "
       "/depot)"},
      {"/work/ada/~/env",
       "--af-env: '~' in /work/ada/~/env was not replaced by your shell: write the whole path"},
  };
  for (const auto& row : table)
    EXPECT_EQ(refusal_of([&] { check_env_prefix(row.prefix, kStorage, files); }), row.message);
}

TEST(JobPaths, Table) {
  const FakeFiles files = usual_files();
  const std::string storage = " is not on storage that jobs see (/work, /depot)";
  const struct {
    const char* what;
    JobPaths paths;
    std::string message;
  } table[] = {
      {"all there", {"/work/ada", "", "", ""}, ""},
      {"case B31: from home",
       {"/home/ada", "", "", ""},
       "the submit directory: /home/ada" + storage},
      {"--chdir to home", {"/work/ada", "/home/ada", "", ""}, "--chdir: /home/ada" + storage},
      {"from home, --chdir to work", {"/home/ada", "/work/ada", "", ""}, ""},
      {"output in home", {"/work/ada", "", "/home/ada/x.log", ""}, "--output: /home/ada" + storage},
      {"error in home", {"/work/ada", "", "", "/home/ada/%j.err"}, "--error: /home/ada" + storage},
      {"no such directory",
       {"/work/ada", "", "logs/%j.out", ""},
       "--output: the directory /work/ada/logs does not exist: create it first, or the job ends "
       "without a trace"},
      {"a pattern in the directory's name", {"/work/ada", "", "%x/%j.out", ""}, ""},
      {"directory not writable",
       {"/work/group", "", "", ""},
       "the job's output (--output was not given): you may not write to the directory "
       "/work/group"},
      {"srun writes nothing there", {"/work/group", "", "", "", false}, ""},
      {"srun, told where",
       {"/work/ada", "", "/work/group/x", "", false},
       "--output: you may not write to the directory /work/group"},
      {"file not writable",
       {"/work/ada", "", "fixed.log", ""},
       "--output: you may not write to /work/ada/fixed.log"},
      {"file there", {"/work/ada", "", "old.log", ""}, ""},
      {"output is a directory",
       {"/work/ada", "", "env", ""},
       "--output: /work/ada/env is a directory: name a file in it"},
      {"nowhere", {"/work/ada", "", "/dev/null", "/dev/null"}, ""},
      {"none", {"/work/ada", "", "none", ""}, ""},
      {"each node's own", {"/work/ada", "", "/tmp/nobody/knows/%j", ""}, ""},
      {"relative to --chdir",
       {"/home/ada", "/work/ada", "../group/x.log", ""},
       "--output: you may not write to the directory /work/group"},
      {"--chdir is a file",
       {"/work", "/work/ada/old.log", "", ""},
       "--chdir: /work/ada/old.log is not a directory"},
  };
  for (const auto& row : table)
    EXPECT_EQ(refusal_of([&] { check_job_paths(row.paths, kStorage, files); }), row.message)
        << row.what;
}

TEST(RealFiles, SeeThisMachine) {
  const FileView& files = real_file_view();
  EXPECT_TRUE(files.is_directory("/usr"));
  EXPECT_FALSE(files.exists("/nonexistent"));
  EXPECT_FALSE(files.is_writable("/nonexistent"));
  EXPECT_EQ(files.real_path("/proc/self/root/nonexistent/x"), "/nonexistent/x");
}

}  // namespace
}  // namespace af
