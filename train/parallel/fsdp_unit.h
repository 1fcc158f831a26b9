// SPDX-License-Identifier: Apache-2.0
// The tensors of one unit of a sharded model: this rank's shards, and the whole parameters while
// the unit has memory.
//
// Operations save views of a parameter for backward (a transposed weight, say), so the storage that
// they view has to be the same object as long as the model lives: only its bytes come and go
// (attach, detach). The parameters themselves are empty while the unit is detached, so that using
// one then is an error of torch about shapes, and not a read of no memory.
//
// In backward the gradients are written over the parameters: the gradient of a parameter is
// complete when all that used it has been through backward, and then nobody reads it any more. So a
// unit never takes more memory than its parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "af/communicator.h"
#include "train/parallel/fsdp_layout.h"

namespace af::train {

// A parameter of the model, as the unit knows it.
struct UnitParameter {
  std::vector<std::string> names;  // more than one if it is shared within the unit
  at::Tensor parameter;            // the model's own
  std::vector<int64_t> sizes;
  at::Tensor view;  // the place in the unit's memory
  // In a step:
  bool expected = false;  // the graph has it
  bool arrived = false;   // its gradient is in the unit's memory
  at::Tensor kept;        // sum of gradients that wait to be reduced
};

struct UnitGroup {
  GroupLayout layout;
  DataType type = DataType::f32;
  std::vector<UnitParameter> parameters;
  at::Tensor shard;     // [count]: the optimizer's, a leaf
  at::Tensor gradient;  // [count], if trained
  at::Tensor whole;     // [count * ranks], while attached
  // Samples that `gradient` is the mean over; 0: it holds nothing of this step.
  double gradient_samples = 0;
  bool has_gradient = false;

  std::size_t shard_bytes() const {
    return static_cast<std::size_t>(layout.count) * layout.element_bytes;
  }
};

class FsdpUnit {
 public:
  // `shards` is the memory of this rank's shards of all units, and the shard tensors keep it.
  FsdpUnit(std::string name, std::vector<UnitGroup> groups, std::size_t bytes, at::Device device,
           const Buffer& shards, int ranks);

  const std::string& name() const { return name_; }
  std::size_t bytes() const { return bytes_; }
  bool empty() const { return groups_.empty(); }
  bool trained() const;
  std::vector<UnitGroup>& groups() { return groups_; }
  const std::vector<UnitGroup>& groups() const { return groups_; }

  // Once, before the first attach(): copies the model's values into `memory`.
  void fill(char* memory);
  // The parameters are those in `memory`, which has bytes() bytes, 64-byte aligned.
  void attach(char* memory);
  void detach();
  char* memory() const { return memory_; }

  // Takes the gradient that autograd has left at the parameter. A rank without samples has zeros,
  // whatever is there.
  enum class Take {
    mean,  // it goes into the unit's memory as it is
    sum,   // likewise, times the samples and with what is kept
    keep,  // it is kept, times the samples
  };
  void take_gradient(UnitParameter& one, int64_t samples, Take how);
  // Zeros (or what is kept) for parameters that got no gradient.
  void complete_gradients();

  // What a pass counts.
  int64_t missing = 0;  // gradients that are expected and not there
  int runs = 0;         // forwards with gradients, since the last backward
  bool reduced = false;
  bool dirty = false;         // some gradients are in its memory
  bool runs_in_step = false;  // in this part of the step or one before
  bool encloses = false;      // other units run within it

  void begin_pass();

 private:
  void view_memory(char* memory);

  std::string name_;
  std::vector<UnitGroup> groups_;
  std::size_t bytes_;
  at::Device device_;
  int ranks_;
  char* memory_ = nullptr;
};

// Throws af::Error for types that the communicator does not know, naming the parameter.
DataType shard_type(const std::string& parameter, at::ScalarType type, bool trained);

}  // namespace af::train
