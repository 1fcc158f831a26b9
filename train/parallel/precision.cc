// SPDX-License-Identifier: Apache-2.0
#include "af/train/precision.h"

#include <ATen/Functions.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/ranges.h>

#include "common/error.h"

namespace af::train {
namespace {

constexpr std::size_t kNameBytes = 96;

// What a rank tells the others.
struct Told {
  int8_t f16, bf16, wanted;  // wanted: -1 for none
  std::array<char, kNameBytes> device;
};

Support of(const PrecisionSupport& rank, Precision precision) {
  switch (precision) {
    case Precision::f16:
      return rank.f16;
    case Precision::bf16:
      return rank.bf16;
    case Precision::f32:
      break;
  }
  return Support::fast;
}

bool all_have(const std::vector<PrecisionSupport>& ranks, Precision precision, Support least) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const auto& rank) { return of(rank, precision) >= least; });
}

PrecisionSupport of_the_cpu() {
  PrecisionSupport support;
  support.device = "CPU";
  support.bf16 = Support::slow;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) {
    support.device += " (avx512_bf16)";
    support.bf16 = Support::fast;
  }
#endif
  return support;
}

// From the driver, which is there when a tensor can be on the GPU; this library is not linked with
// CUDA. Numbers are those of cuda.h's CUdevice_attribute.
PrecisionSupport of_gpu(int index) {
  constexpr int kMajor = 75, kMinor = 76;
  using GetDevice = int (*)(int*, int);
  using GetAttribute = int (*)(int*, int, int);
  using GetName = int (*)(char*, int, int);
  using Init = int (*)(unsigned);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr)
    throw Error::format("the precision of cuda:{}: no driver of NVIDIA here ({})", index,
                        dlerror());
  const auto init = reinterpret_cast<Init>(dlsym(driver, "cuInit"));
  const auto get_device = reinterpret_cast<GetDevice>(dlsym(driver, "cuDeviceGet"));
  const auto get_attribute = reinterpret_cast<GetAttribute>(dlsym(driver, "cuDeviceGetAttribute"));
  const auto get_name = reinterpret_cast<GetName>(dlsym(driver, "cuDeviceGetName"));
  int device = 0, major = 0, minor = 0;
  std::array<char, 64> name{};
  if (init == nullptr || get_device == nullptr || get_attribute == nullptr || get_name == nullptr ||
      init(0) != 0 || get_device(&device, index) != 0 ||
      get_attribute(&major, kMajor, device) != 0 || get_attribute(&minor, kMinor, device) != 0 ||
      get_name(name.data(), static_cast<int>(name.size()) - 1, device) != 0)
    throw Error::format("the precision of cuda:{}: the driver does not tell its capability", index);
  return support_of_capability(name.data(), major, minor);
}

}  // namespace

PrecisionSupport support_of_capability(const std::string& name, int major, int minor) {
  PrecisionSupport support;
  support.device = fmt::format("{} (compute capability {}.{})", name, major, minor);
  if (major >= 7)
    support.f16 = Support::fast;
  else if (major > 5 || (major == 5 && minor >= 3))
    support.f16 = Support::slow;
  if (major >= 8) support.bf16 = Support::fast;
  return support;
}

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::f16:
      return "f16";
    case Precision::bf16:
      return "bf16";
    case Precision::f32:
      break;
  }
  return "f32";
}

Precision to_precision(const std::string& name) {
  for (const Precision one : {Precision::f32, Precision::f16, Precision::bf16})
    if (name == name_of(one)) return one;
  throw Error::format("precision {}: f32, f16 or bf16", name);
}

at::ScalarType type_of(Precision precision) {
  switch (precision) {
    case Precision::f16:
      return at::kHalf;
    case Precision::bf16:
      return at::kBFloat16;
    case Precision::f32:
      break;
  }
  return at::kFloat;
}

PrecisionSupport precision_support(at::Device device) {
  if (device.is_cpu()) return of_the_cpu();
  if (device.is_cuda()) return of_gpu(device.has_index() ? device.index() : 0);
  PrecisionSupport support;
  support.device = device.str();
  return support;
}

Precision choose_precision(const std::vector<PrecisionSupport>& ranks,
                           std::optional<Precision> wanted) {
  Precision best = Precision::f32;
  for (const Precision one : {Precision::f16, Precision::bf16})
    if (all_have(ranks, one, Support::fast)) best = one;
  if (!wanted) return best;
  if (all_have(ranks, *wanted, Support::slow)) return *wanted;
  std::vector<std::string> without;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (of(ranks[rank], *wanted) == Support::none)
      without.push_back(fmt::format("rank {}, {}", rank, ranks[rank].device));
  std::vector<const char*> can;
  for (const Precision one : {Precision::f32, Precision::f16, Precision::bf16})
    if (all_have(ranks, one, Support::slow)) can.push_back(name_of(one));
  throw Error::format("{} is asked for, and not all ranks have it: {}. All of them have {}",
                      name_of(*wanted), fmt::join(without, "; "), fmt::join(can, " and "));
}

Precision agree_on_precision(Communicator& world, at::Device device,
                             std::optional<Precision> wanted) {
  const PrecisionSupport mine = precision_support(device);
  Told told{static_cast<int8_t>(mine.f16),
            static_cast<int8_t>(mine.bf16),
            static_cast<int8_t>(wanted ? static_cast<int>(*wanted) : -1),
            {}};
  std::memcpy(told.device.data(), mine.device.data(), std::min(mine.device.size(), kNameBytes - 1));
  // In memory of the device: NCCL takes no other.
  const auto size = static_cast<int64_t>(sizeof told);
  const at::Tensor in = at::from_blob(&told, {size}, at::kByte).to(device);
  const at::Tensor out = at::empty({size * world.world_size()}, in.options());
  world.all_gather(in.data_ptr(), out.data_ptr(), sizeof told, DataType::u8).synchronize();
  const at::Tensor gathered = out.cpu();

  std::vector<PrecisionSupport> ranks;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    Told one{};
    std::memcpy(&one, static_cast<const char*>(gathered.data_ptr()) + sizeof one * rank,
                sizeof one);
    ranks.push_back(
        {one.device.data(), static_cast<Support>(one.f16), static_cast<Support>(one.bf16)});
    Told first{};
    std::memcpy(&first, gathered.data_ptr(), sizeof first);
    if (one.wanted != first.wanted) {
      const auto text = [](int8_t value) {
        return value < 0 ? "the best" : name_of(static_cast<Precision>(value));
      };
      throw Error::format(
          "rank {} asks for {} and rank 0 for {}: give all ranks the same precision", rank,
          text(one.wanted), text(first.wanted));
    }
  }
  return choose_precision(ranks, wanted);
}

}  // namespace af::train
