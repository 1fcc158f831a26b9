// SPDX-License-Identifier: Apache-2.0
// The site file, etc/af.yaml: which GPUs there are, how to ask for them, what jobs see.
// Its format is documented in docs/site.md.
//
// load_site() is called at each submission and on the nodes; it opens one file and nothing else.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/settings.h"

namespace af {

// A kind of GPU that one request can name.
struct GpuClass {
  std::string name;       // for people: "t4"
  std::string gres_type;  // Slurm's GRES type; "" = the site's GRES is untyped
  std::string feature;    // node feature that selects the class; "" = none
  int memory_gb = 0;
  bool mig = false;  // instances of a card, not whole cards
  int instances_per_card = 1;
  int max_per_node = 1;
  int total = 1;                        // GPUs (or instances) of this class at the site
  std::vector<std::string> partitions;  // where they are; empty = in every partition
};

// A way to submit. "" = leave to the person and to Slurm's default.
struct SubmitWay {
  std::string partition, qos, account;
};

struct Storage {
  std::vector<std::string> jobs_see;       // absolute paths: "/work"
  std::vector<std::string> jobs_dont_see;  // "/home"
};

struct Site {
  std::string file;     // where it was read; "" = the built-in defaults
  bool enabled = true;  // no: af's options are refused with `disabled_reason`
  std::string disabled_reason;
  std::vector<GpuClass> gpus;
  SubmitWay kept, spare;
  SettingLimits limits;
  Storage storage;
  // Native options that the site refuses beside af's own (long names without dashes).
  std::vector<std::string> refused_options;

  int largest_gpu_memory_gb() const;
};

// Throws Error "etc/af.yaml:12: gpus[0].memory_gb: …" with file, line, key and what is expected.
Site parse_site(std::string_view yaml, const std::string& file_name);
Site load_site(const std::filesystem::path& file);

// Which site file a tool uses: `option` (--config), else $AF_CONFIG, else what `fallbacks` has
// first that exists. Throws Error with what was tried.
std::filesystem::path find_site_file(const std::string& option, const char* af_config,
                                     const std::vector<std::filesystem::path>& fallbacks);

}  // namespace af
