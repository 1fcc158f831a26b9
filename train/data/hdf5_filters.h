// SPDX-License-Identifier: Apache-2.0
// The filters of a dataset: whether they are installed, and whether we undo them ourselves.
#pragma once

#include <hdf5.h>

#include <optional>
#include <string>

#include "train/data/chunk_filters.h"

namespace af::train {

// A missing filter would otherwise be found at the first read only, perhaps hours later. Throws
// af::Error with `where`, the filter, and where to get its plugin.
void check_filters(hid_t creation_properties, const std::string& where);

// The pipeline of a chunked dataset, if all of it is undone by undo_filters(). `chunk_bytes` of a
// chunk without filters, edges included.
std::optional<ChunkPipeline> own_pipeline(hid_t creation_properties, std::size_t element_bytes,
                                          std::size_t chunk_bytes);

}  // namespace af::train
