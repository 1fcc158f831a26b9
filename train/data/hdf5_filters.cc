// SPDX-License-Identifier: Apache-2.0
#include "train/data/hdf5_filters.h"

#include <algorithm>
#include <array>

#include "common/error.h"

namespace af::train {
namespace {

struct Known {
  H5Z_filter_t id;
  const char* name;
  const char* from;
};

constexpr const char* kElsewhere =
    "no package of Debian 12: pip install hdf5plugin, and set HDF5_PLUGIN_PATH to the folder that "
    "python3 -c 'import hdf5plugin; print(hdf5plugin.PLUGIN_PATH)' prints";

// The numbers are registered with the HDF Group (portal.hdfgroup.org, "Registered Filter Plugins").
constexpr std::array<Known, 9> kKnown = {{
    {307, "bzip2", "Debian package hdf5-filter-plugin"},
    {32000, "lzf", "Debian package hdf5-plugin-lzf"},
    {32001, "blosc", "Debian package hdf5-filter-plugin-blosc-serial"},
    {32004, "lz4", "Debian package hdf5-filter-plugin"},
    {32008, "bitshuffle", kElsewhere},
    {32013, "zfp", "Debian package hdf5-filter-plugin-zfp-serial"},
    {32015, "zstd", kElsewhere},
    {32026, "blosc2", kElsewhere},
    {H5Z_FILTER_SZIP, "szip", "an HDF5 that was built with it; Debian's is"},
}};

}  // namespace

void check_filters(hid_t properties, const std::string& where) {
  const int filters = H5Pget_nfilters(properties);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0;
    size_t values = 0;
    char name[64] = "";
    const H5Z_filter_t id = H5Pget_filter2(properties, static_cast<unsigned>(i), &flags, &values,
                                           nullptr, sizeof name, name, nullptr);
    if (H5Zfilter_avail(id) > 0) continue;
    const auto* known =
        std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& one) { return one.id == id; });
    const bool is_known = known != kKnown.end();
    const std::string called = is_known ? known->name : name[0] != '\0' ? name : "unnamed";
    throw Error::format(
        "{} is compressed with filter {} ({}), which is not installed here. Install its HDF5 "
        "plugin ({}), or set HDF5_PLUGIN_PATH to the folder that has it",
        where, static_cast<int>(id), called,
        is_known ? known->from : "ask whoever wrote the file where it comes from");
  }
}

std::optional<ChunkPipeline> own_pipeline(hid_t properties, std::size_t element_bytes,
                                          std::size_t chunk_bytes) {
  unsigned options = 0;
  H5Pget_chunk_opts(properties, &options);
  // Chunks over the edge without filters: nothing in the file says which.
  if ((options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0) return std::nullopt;
  ChunkPipeline pipeline{.filters = {}, .element_bytes = element_bytes, .chunk_bytes = chunk_bytes};
  const int filters = H5Pget_nfilters(properties);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0;
    size_t values = 0;
    switch (H5Pget_filter2(properties, static_cast<unsigned>(i), &flags, &values, nullptr, 0,
                           nullptr, nullptr)) {
      case H5Z_FILTER_DEFLATE:
        pipeline.filters.push_back(ChunkFilter::deflate);
        break;
      case H5Z_FILTER_SHUFFLE:
        pipeline.filters.push_back(ChunkFilter::shuffle);
        break;
      case H5Z_FILTER_FLETCHER32:
        pipeline.filters.push_back(ChunkFilter::fletcher32);
        break;
      default:
        return std::nullopt;
    }
  }
  // The size of what one deflate gives to another is written nowhere.
  if (std::count(pipeline.filters.begin(), pipeline.filters.end(), ChunkFilter::deflate) > 1)
    return std::nullopt;
  return pipeline;
}

}  // namespace af::train
