// SPDX-License-Identifier: Apache-2.0
// Reads the site file. Each key is taken through Section, which knows where it is in the file and
// which keys it was asked for: so every error has file, line and key, and no key goes unread.
#include "common/site.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>

#include "common/atomic_file.h"
#include "common/error.h"
#include "common/nearest_name.h"

namespace af {
namespace {

// One mapping of the file. Absent sections give the defaults.
class Section {
 public:
  Section(const YAML::Node& node, std::string path, const std::string& file)
      : node_(node), path_(std::move(path)), file_(file) {
    if (!node_ || node_.IsNull()) return;
    if (!node_.IsMap()) throw wrong(node_, "", "a mapping (key: value)");
    std::set<std::string> seen;
    for (const auto& item : node_) {
      const std::string key = item.first.IsScalar() ? item.first.Scalar() : "";
      // yaml-cpp keeps both of two equal keys and answers with the first: the second is lost.
      if (!seen.insert(key).second) throw wrong(item.first, key, "each key only once");
      present_.emplace_back(key, item.first.Mark().line);
    }
  }

  Section section(const std::string& key) { return {child(key), join(key), file_}; }

  std::string text(const std::string& key, const std::string& fallback = "") {
    const YAML::Node node = child(key);
    if (!node || node.IsNull()) return fallback;
    if (!node.IsScalar()) throw wrong(node, key, "text");
    return node.Scalar();
  }

  bool flag(const std::string& key, bool fallback) {
    const YAML::Node node = child(key);
    if (!node || node.IsNull()) return fallback;
    bool value = false;
    if (!node.IsScalar() || !YAML::convert<bool>::decode(node, value))
      throw wrong(node, key, "yes or no");
    return value;
  }

  // Digits only: yaml-cpp would also take 0x10 and 1e3.
  std::optional<int> number(const std::string& key, int least) {
    const YAML::Node node = child(key);
    if (!node || node.IsNull()) return std::nullopt;
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    const bool digits = !text.empty() && text.size() <= 6 &&
                        text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || std::stoi(text) < least)
      throw wrong(node, key, fmt::format("a whole number of at least {}", least));
    return std::stoi(text);
  }

  std::vector<std::string> texts(const std::string& key) {
    std::vector<std::string> values;
    for (const YAML::Node& node : nodes(key)) {
      if (!node.IsScalar() || node.Scalar().empty()) throw wrong(node, key, "a list of texts");
      values.push_back(node.Scalar());
    }
    return values;
  }

  std::vector<std::string> absolute_paths(const std::string& key) {
    std::vector<std::string> values;
    for (const YAML::Node& node : nodes(key)) {
      if (!node.IsScalar() || !node.Scalar().starts_with('/'))
        throw wrong(node, key, "a list of absolute paths");
      values.push_back(node.Scalar());
    }
    return values;
  }

  std::vector<YAML::Node> nodes(const std::string& key) {
    const YAML::Node node = child(key);
    if (!node || node.IsNull()) return {};
    if (!node.IsSequence()) throw wrong(node, key, "a list");
    return {node.begin(), node.end()};
  }

  // Call it last: what nobody asked for is not a key.
  void no_other_keys() const {
    for (const auto& [key, line] : present_) {
      if (std::ranges::find(asked_, key) != asked_.end()) continue;
      std::string all;
      for (const std::string& name : asked_) all += (all.empty() ? "" : ", ") + name;
      throw Error::format("{}:{}: {}: there is no such key{} (expected: {})", file_, line + 1,
                          join(key), did_you_mean(key, asked_), all);
    }
  }

  Error wrong(const YAML::Node& node, const std::string& key, const std::string& expected) const {
    const std::string found = node && node.IsScalar() ? ", not '" + node.Scalar() + "'" : "";
    return Error::format("{}:{}: {}: expected {}{}", file_, line_of(node), join(key), expected,
                         found);
  }
  Error missing(const std::string& key, const std::string& what) const {
    return Error::format("{}:{}: {} is missing: {}", file_, line_of(node_), join(key), what);
  }
  // With another key, or with what the key is for.
  Error contradiction(const std::string& key, const std::string& what) const {
    return Error::format("{}:{}: {}: {}", file_, line_of(node_), join(key), what);
  }

 private:
  YAML::Node child(const std::string& key) {
    asked_.push_back(key);
    return node_ && node_.IsMap() ? std::as_const(node_)[key]
                                  : YAML::Node(YAML::NodeType::Undefined);
  }
  std::string join(const std::string& key) const {
    if (path_.empty()) return key.empty() ? "the file" : key;
    return key.empty() ? path_ : path_ + "." + key;
  }
  static int line_of(const YAML::Node& node) {
    return node && node.Mark().line >= 0 ? node.Mark().line + 1 : 1;
  }

  YAML::Node node_;
  std::string path_;
  const std::string& file_;
  std::vector<std::string> asked_;
  std::vector<std::pair<std::string, int>> present_;
};

GpuClass read_gpu(Section section) {
  GpuClass gpu;
  gpu.name = section.text("name");
  if (gpu.name.empty()) throw section.missing("name", "what people call this GPU");
  gpu.gres_type = section.text("gres_type");
  gpu.feature = section.text("feature");
  const auto needed = [&](const char* key, const char* what) {
    const auto value = section.number(key, 1);
    if (!value) throw section.missing(key, what);
    return *value;
  };
  gpu.memory_gb = needed("memory_gb", "memory of one GPU or instance in GB");
  gpu.mig = section.flag("mig", false);
  gpu.instances_per_card = section.number("instances_per_card", 1).value_or(1);
  gpu.max_per_node = needed("max_per_node", "most GPUs of this kind on one node");
  gpu.total = needed("total", "GPUs of this kind at the site");
  gpu.partitions = section.texts("partitions");
  if (!gpu.mig && gpu.instances_per_card > 1)
    throw section.contradiction("mig",
                                "instances_per_card above 1 is for MIG instances: set mig: yes");
  if (gpu.total < gpu.max_per_node)
    throw section.contradiction("total", "cannot be less than max_per_node");
  section.no_other_keys();
  return gpu;
}

bool share_a_partition(const GpuClass& a, const GpuClass& b) {
  if (a.partitions.empty() || b.partitions.empty()) return true;
  return std::ranges::find_first_of(a.partitions, b.partitions) != a.partitions.end();
}

std::vector<GpuClass> read_gpus(Section& root, const std::string& file) {
  std::vector<GpuClass> gpus;
  for (const YAML::Node& node : root.nodes("gpus")) {
    const std::string path = fmt::format("gpus[{}]", gpus.size());
    Section section(node, path, file);
    GpuClass gpu = read_gpu(section);
    for (const GpuClass& other : gpus) {
      if (other.name == gpu.name) throw section.wrong(node["name"], "name", "a name only once");
      // Two kinds in one partition that no request can tell apart: a job would get either.
      const bool apart = (!gpu.gres_type.empty() && gpu.gres_type != other.gres_type) ||
                         (!gpu.feature.empty() && gpu.feature != other.feature);
      if (!apart && share_a_partition(gpu, other))
        throw section.contradiction(
            "gres_type",
            fmt::format("give a gres_type or feature that tells {} from {}", gpu.name, other.name));
    }
    gpus.push_back(std::move(gpu));
  }
  if (gpus.empty()) throw root.missing("gpus", "list at least one kind of GPU");
  return gpus;
}

SubmitWay read_way(Section section) {
  SubmitWay way{section.text("partition"), section.text("qos"), section.text("account")};
  section.no_other_keys();
  return way;
}

void read_setting_limit(Section section, const SettingSpec& spec, SettingLimit& limit) {
  const auto fallback = section.number("default", spec.min);
  const auto min = section.number("min", spec.min);
  const auto max = section.number("max", spec.min);
  if (fallback) {
    limit.fallback = *fallback;
    limit.source = Source::kSite;
  }
  limit.min = min.value_or(limit.min);
  limit.max = max.value_or(limit.max);
  section.no_other_keys();
  if (limit.min > limit.max)
    throw section.contradiction("max", fmt::format("min {} is above max {}", limit.min, limit.max));
  if (limit.fallback && (*limit.fallback < limit.min || *limit.fallback > limit.max))
    throw section.contradiction("default", fmt::format("the default {} is outside of {} to {}",
                                                       *limit.fallback, limit.min, limit.max));
}

void read_settings(Section section, SettingLimits& limits) {
  for (const SettingSpec& spec : settings_table())
    if (spec.type == SettingType::kInteger)
      read_setting_limit(section.section(spec.name), spec,
                         limits.of[static_cast<std::size_t>(spec.id)]);
  section.no_other_keys();
}

}  // namespace

int Site::largest_gpu_memory_gb() const {
  int largest = 0;
  for (const GpuClass& gpu : gpus) largest = std::max(largest, gpu.memory_gb);
  return largest;
}

Site parse_site(std::string_view yaml, const std::string& file_name) {
  YAML::Node document;
  try {
    document = YAML::Load(std::string(yaml));
  } catch (const YAML::Exception& e) {
    throw Error::format("{}:{}: not YAML: {}", file_name, e.mark.line + 1, e.msg);
  }
  Section root(document, "", file_name);
  Site site;
  site.file = file_name;
  site.enabled = root.flag("enabled", true);
  site.disabled_reason = root.text("disabled_reason");
  site.gpus = read_gpus(root, file_name);
  Section submit = root.section("submit");
  site.kept = read_way(submit.section("kept"));
  site.spare = read_way(submit.section("spare"));
  submit.no_other_keys();
  SettingLimit& memory = site.limits.of[static_cast<std::size_t>(SettingId::kMinGpuMemoryGb)];
  memory.max = site.largest_gpu_memory_gb();
  read_settings(root.section("settings"), site.limits);
  Section storage = root.section("storage");
  site.storage.jobs_see = storage.absolute_paths("jobs_see");
  site.storage.jobs_dont_see = storage.absolute_paths("jobs_do_not_see");
  storage.no_other_keys();
  Section environment = root.section("environment");
  site.limits.default_env = environment.text("default");
  environment.no_other_keys();
  if (!site.limits.default_env.empty() && !site.limits.default_env.starts_with('/'))
    throw environment.contradiction("default", "an absolute path is expected, or nothing");
  Section conflicts = root.section("conflicts");
  site.refused_options = conflicts.texts("refuse");
  conflicts.no_other_keys();
  root.no_other_keys();
  return site;
}

Site load_site(const std::filesystem::path& file) {
  return parse_site(read_file(file), file.string());
}

std::filesystem::path find_site_file(const std::string& option, const char* af_config,
                                     const std::vector<std::filesystem::path>& fallbacks) {
  if (!option.empty()) return option;
  if (af_config && *af_config) return af_config;
  std::string tried;
  for (const auto& file : fallbacks) {
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) return file;
    tried += (tried.empty() ? "" : ", ") + file.string();
  }
  throw Error::format("no site file: give --config FILE or set AF_CONFIG (looked at: {})", tried);
}

}  // namespace af
