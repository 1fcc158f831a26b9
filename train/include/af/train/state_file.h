// SPDX-License-Identifier: Apache-2.0
// state.pt: nested dicts of tensors and plain values that C++ and Python both read.
//
// Python reads what write_state() wrote with `torch.load(path)`, also where weights_only is the
// default (torch 2.6 and later), and gets plain dicts. read_state() reads what Python wrote with
// `torch.save({"model": dict(model.state_dict()), …}, path)`.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include <filesystem>

#include "af/export.h"

namespace af::train {

// Keys are strings; values are tensors, int64_t, bool, strings, None, or another State. (Floats and
// lists are left out: Python's restricted unpickler refuses them in some versions. Put numbers with
// a fraction into a tensor.) A handle: copies share the same dict.
using State = c10::impl::GenericDict;
AF_PUBLIC State make_state();

// Tensors are written from host memory, device tensors are copied there first. A tensor that is a
// view is written without the rest of its storage. Not atomic by itself: see checkpoint.h.
// Throws af::Error with the path, or with the key of a value that is not listed above.
AF_PUBLIC void write_state(const std::filesystem::path& path, const State& state);

// Throws af::Error with the path; with the cure when the file holds what only Python can read, such
// as the OrderedDict of a bare model.state_dict().
AF_PUBLIC State read_state(const std::filesystem::path& path);

}  // namespace af::train
