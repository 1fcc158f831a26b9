// SPDX-License-Identifier: Apache-2.0
// The built plugin as a file: it loads into a process without Slurm, every symbol bound at once,
// and shows what Slurm looks for and nothing else (case B52: an undefined symbol once killed every
// sbatch of a site).
#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <slurm/slurm_version.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace {

const std::set<std::string> kShown = {
    "plugin_name",           "plugin_type",           "plugin_version",
    "spank_plugin_version",  "slurm_spank_init",      "slurm_spank_init_post_opt",
    "slurm_spank_task_init", "slurm_spank_task_exit", "slurm_spank_exit"};

std::string plugin_path(const char* below_build) {
  // build/tests/unit/spank -> build/…
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path().parent_path() /
         below_build;
}

// Names in the dynamic symbol table: those that the file defines, or those that it must find.
std::set<std::string> dynamic_symbols(const std::string& path, bool defined) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::set<std::string> names;
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    const char* strings = bytes.data() + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes.data() + sections[i].sh_offset);
    for (std::size_t n = 0; n < sections[i].sh_size / sizeof(Elf64_Sym); ++n) {
      const bool weak = ELF64_ST_BIND(symbols[n].st_info) == STB_WEAK;
      const bool is_defined = symbols[n].st_shndx != SHN_UNDEF;
      if (defined ? is_defined : !is_defined && !weak) names.insert(strings + symbols[n].st_name);
    }
  }
  names.erase("");
  return names;
}

TEST(PluginFileTest, ShowsTheSpankSymbolsOnly) {
  EXPECT_EQ(dynamic_symbols(plugin_path("lib/slurm/spank_af.so"), true), kShown);
}

TEST(PluginFileTest, NeedsNoSymbolOfSlurm) {
  for (const std::string& name : dynamic_symbols(plugin_path("lib/slurm/spank_af.so"), false)) {
    EXPECT_FALSE(name.starts_with("slurm_") || name.starts_with("spank_") || name == "opt") << name;
  }
}

TEST(PluginFileTest, LoadsAtOnceIntoAnyProcess) {
  void* plugin = dlopen(plugin_path("lib/slurm/spank_af.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(plugin, nullptr) << dlerror();
  EXPECT_STREQ(static_cast<const char*>(dlsym(plugin, "plugin_name")), "af");
  EXPECT_STREQ(static_cast<const char*>(dlsym(plugin, "plugin_type")), "spank");
  EXPECT_EQ(*static_cast<const unsigned*>(dlsym(plugin, "plugin_version")),
            static_cast<unsigned>(SLURM_VERSION_NUMBER));
  // In a process without Slurm (no context) every hook does nothing, successfully.
  for (const std::string& name : kShown) {
    if (!name.starts_with("slurm_spank_")) continue;
    const auto hook = reinterpret_cast<int (*)(void*, int, char**)>(dlsym(plugin, name.c_str()));
    ASSERT_NE(hook, nullptr) << name;
    EXPECT_EQ(hook(nullptr, 0, nullptr), 0) << name;
  }
  EXPECT_EQ(dlclose(plugin), 0);
}

}  // namespace
