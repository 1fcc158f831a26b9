// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/fsdp_state.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "af/train/module_state.h"
#include "af/train/state_reader.h"
#include "af/train/state_writer.h"
#include "common/error.h"
#include "train/parallel/fsdp_agreement.h"
#include "train/parallel/fsdp_runtime.h"

namespace af::train {
namespace {

const char kShard[] = "shard";

// A shard as a model of one parameter, for what is known about models and optimizers.
struct ShardModel : torch::nn::Module {
  explicit ShardModel(const at::Tensor& shard) { register_parameter(kShard, shard); }
};

// The optimizer's state of a group's shard: {"exp_avg": [count], "step": …}; empty if it has none.
State shard_state(const torch::optim::Optimizer& optimizer, const UnitGroup& group) {
  if (!group.layout.trained) return make_state();
  const State state = state_of(optimizer, ShardModel(group.shard));
  return state.contains(kShard) ? state.at(kShard).toGenericDict() : make_state();
}

at::ScalarType type_of(const UnitGroup& group) {
  return static_cast<at::ScalarType>(group.layout.type);
}

void require_shard(const std::string& field, const at::Tensor& value, const UnitGroup& group) {
  if (value.dim() == 1 && value.size(0) == group.layout.count &&
      value.scalar_type() == type_of(group))
    return;
  throw Error::format("the optimizer's {} of a shard is not like the shard: it cannot be saved",
                      field);
}

// The file's dicts, with tensors that have no memory. Names that share a parameter share a tensor.
State outline_of(FsdpRuntime& runtime, const State& more) {
  State outline = make_state();
  State model = make_state();
  std::map<std::string, at::Tensor> whole;
  for (const FsdpUnit& unit : runtime.units())
    for (const UnitGroup& group : unit.groups())
      for (const UnitParameter& one : group.parameters) {
        const at::Tensor tensor = tensor_to_write(one.sizes, type_of(group));
        for (const std::string& name : one.names) whole[name] = tensor;
      }
  // In the order of the model, as state_of(model) has it.
  for (const auto& item : runtime.model().named_parameters())
    if (item.value().defined()) model.insert(item.key(), whole.at(item.key()));
  for (const auto& item : runtime.model().named_buffers())
    if (item.value().defined())
      model.insert(item.key(), tensor_to_write(item.value().sizes(), item.value().scalar_type()));
  outline.insert("model", model);
  for (const auto& [name, optimizer] : runtime.kept()) {
    State parameters = make_state();
    for (const FsdpUnit& unit : runtime.units())
      for (const UnitGroup& group : unit.groups()) {
        const State fields = shard_state(*optimizer, group);
        if (fields.empty()) continue;
        for (const UnitParameter& one : group.parameters) {
          State values = make_state();
          for (const auto& field : fields) {
            if (!field.value().isTensor()) {
              values.insert(field.key(), field.value());
              continue;
            }
            require_shard(field.key().toStringRef(), field.value().toTensor(), group);
            values.insert(field.key(), tensor_to_write(one.sizes, type_of(group)));
          }
          for (const std::string& parameter : one.names) parameters.insert(parameter, values);
        }
      }
    outline.insert(name, parameters);
  }
  for (const auto& item : more) {
    if (outline.contains(item.key()))
      throw Error::format("the state has {} twice", item.key().toStringRef());
    outline.insert(item.key(), item.value());
  }
  return outline;
}

void write_more(StateWriter& writer, const std::string& prefix, const State& more) {
  for (const auto& item : more) {
    const std::string name = prefix + item.key().toStringRef();
    if (item.value().isTensor()) writer.write(name, item.value().toTensor());
    if (item.value().isGenericDict()) write_more(writer, name + "/", item.value().toGenericDict());
  }
}

// Collective: puts each unit together, and then each field of its optimizer's state in its place.
// `write` on rank 0 alone.
using Write = std::function<void(const std::string& name, const at::Tensor& whole)>;
void stream(FsdpRuntime& runtime, const Write& write) {
  for (std::size_t u = 0; u < runtime.units().size(); ++u) {
    const auto unit = static_cast<int>(u);
    if (runtime.units()[u].empty()) continue;
    runtime.make_whole(unit);
    const auto& groups = runtime.units()[u].groups();
    for (const UnitGroup& group : groups)
      for (const UnitParameter& one : group.parameters)
        write("model/" + one.names.front(), one.view);
    for (const auto& [name, optimizer] : runtime.kept())
      for (std::size_t g = 0; g < groups.size(); ++g)
        for (const auto& field : shard_state(*optimizer, groups[g])) {
          if (!field.value().isTensor()) continue;
          runtime.gather_instead(unit, g, field.value().toTensor());
          for (const UnitParameter& one : groups[g].parameters)
            write(name + "/" + one.names.front() + "/" + field.key().toStringRef(), one.view);
        }
    runtime.let_go(unit);
  }
}

// On rank 0: all that has to be gathered is gathered whatever becomes of the file, since the other
// ranks take part in it.
void write_file(FsdpRuntime& runtime, const std::filesystem::path& file, const State& more,
                bool& begun) {
  StateWriter writer(file, outline_of(runtime, more));
  begun = true;
  share_error(runtime.world(), "", runtime.device());
  std::exception_ptr failed;
  stream(runtime, [&](const std::string& name, const at::Tensor& whole) {
    if (failed) return;
    try {
      writer.write(name, whole);
    } catch (const Error&) {
      failed = std::current_exception();
    }
  });
  if (failed) std::rethrow_exception(failed);
  for (const auto& item : runtime.model().named_buffers())
    if (item.value().defined()) writer.write("model/" + item.key(), item.value());
  write_more(writer, "", more);
  writer.finish();
}

// `place` calls what it is given with the path of the file, on rank 0.
void save(
    FsdpRuntime& runtime, const State& more,
    const std::function<void(const std::function<void(const std::filesystem::path&)>&)>& place) {
  const at::NoGradGuard no_grad;
  Communicator& world = runtime.world();
  std::string error;
  if (world.rank() == 0) {
    bool begun = false;
    try {
      place([&](const std::filesystem::path& file) { write_file(runtime, file, more, begun); });
    } catch (const CommunicatorError&) {
      throw;
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  } else {
    share_error(world, "", runtime.device());  // whether there is a file
    stream(runtime, [](const std::string&, const at::Tensor&) {});
  }
  share_error(world, error, runtime.device());  // whether it is complete
}

// Reads what this rank's shard has of a parameter.
void read_share(const StateReader& reader, const std::string& name, const UnitGroup& group,
                std::size_t parameter, int rank, const at::Tensor& shard) {
  int64_t elements = 1;
  for (const int64_t size : group.parameters[parameter].sizes) elements *= size;
  const Overlap part =
      overlap_of(group.layout.offsets[parameter], elements, group.layout.count, rank);
  if (part.elements == 0) return;
  const at::Tensor into = shard.narrow(0, part.in_shard, part.elements);
  const at::Tensor plain = into.device().is_cpu() ? into : at::empty_like(into, at::kCPU);
  reader.read(name, part.in_parameter, part.elements, plain.data_ptr());
  if (!into.device().is_cpu()) into.copy_(plain);
}

void require_like(const StateReader& reader, const std::string& name,
                  const std::vector<int64_t>& sizes, at::ScalarType type) {
  const StateReader::Tensor& found = reader.tensor(name);
  if (found.sizes != sizes || found.type != type)
    throw Error::format("{} is {} [{}] in the file and {} [{}] here", name,
                        c10::toString(found.type), fmt::join(found.sizes, ", "),
                        c10::toString(type), fmt::join(sizes, ", "));
}

// The fields of the optimizer's state that the file has for a group's parameters; none if none has
// any.
State fields_in(const State& saved, const UnitGroup& group, int rank) {
  State fields = make_state();
  for (const UnitParameter& one : group.parameters) {
    const auto found = saved.find(one.names.front());
    if (found == saved.end()) continue;
    for (const auto& field : found->value().toGenericDict()) {
      const auto known = fields.find(field.key());
      if (known == fields.end()) {
        fields.insert(field.key(), field.value());
        continue;
      }
      if (!field.value().isInt() || known->value().toInt() == field.value().toInt()) continue;
      if (rank == 0)
        warn_on_stderr(fmt::format(
            "{} of {} is {} in the optimizer's state, and {} of another parameter of its unit: "
            "the larger one is taken for all",
            field.key().toStringRef(), one.names.front(), field.value().toInt(),
            known->value().toInt()));
      fields.insert_or_assign(field.key(), std::max(known->value().toInt(), field.value().toInt()));
    }
  }
  return fields;
}

State saved_optimizer(const StateReader& reader, const std::string& name) {
  const auto found = reader.state().find(name);
  if (found == reader.state().end() || !found->value().isGenericDict())
    throw Error::format("the file has no state of an optimizer {}", name);
  return found->value().toGenericDict();
}

void check_file(FsdpRuntime& runtime, const StateReader& reader) {
  std::set<std::string> known;
  for (const FsdpUnit& unit : runtime.units())
    for (const UnitGroup& group : unit.groups())
      for (const UnitParameter& one : group.parameters) {
        require_like(reader, "model/" + one.names.front(), one.sizes, type_of(group));
        for (const std::string& name : one.names) known.insert("model/" + name);
        for (const auto& [name, optimizer] : runtime.kept()) {
          const State saved = saved_optimizer(reader, name);
          const auto found = saved.find(one.names.front());
          if (found == saved.end()) continue;
          for (const auto& field : found->value().toGenericDict())
            if (field.value().isTensor())
              require_like(reader, name + "/" + one.names.front() + "/" + field.key().toStringRef(),
                           one.sizes, type_of(group));
        }
      }
  for (const auto& item : runtime.model().named_buffers()) {
    if (!item.value().defined()) continue;
    require_like(reader, "model/" + item.key(), item.value().sizes().vec(),
                 item.value().scalar_type());
    known.insert("model/" + item.key());
  }
  for (const StateReader::Tensor& one : reader.tensors())
    if (one.name.rfind("model/", 0) == 0 && known.count(one.name) == 0)
      throw Error::format("the file has {}, which the model does not", one.name);
}

void load_optimizer(FsdpRuntime& runtime, const StateReader& reader, const std::string& name,
                    torch::optim::Optimizer& optimizer, UnitGroup& group) {
  const int rank = runtime.world().rank();
  const State saved = saved_optimizer(reader, name);
  const State fields = fields_in(saved, group, rank);
  if (fields.empty()) return;
  const State there = shard_state(optimizer, group);
  State mine = make_state();
  for (const auto& field : fields) {
    if (!field.value().isTensor()) {
      mine.insert(field.key(), field.value());
      continue;
    }
    // A parameter that has made no step yet has zeros.
    const at::Tensor shard = there.contains(field.key()) ? there.at(field.key()).toTensor().zero_()
                                                         : at::zeros_like(group.shard);
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const std::string tensor =
          name + "/" + group.parameters[i].names.front() + "/" + field.key().toStringRef();
      if (reader.contains(tensor)) read_share(reader, tensor, group, i, rank, shard);
    }
    mine.insert(field.key(), shard);
  }
  State state = make_state();
  state.insert(kShard, mine);
  load_into(optimizer, ShardModel(group.shard), state);
}

void read_file(FsdpRuntime& runtime, const StateReader& reader) {
  const int rank = runtime.world().rank();
  for (FsdpUnit& unit : runtime.units())
    for (UnitGroup& group : unit.groups()) {
      for (std::size_t i = 0; i < group.parameters.size(); ++i)
        read_share(reader, "model/" + group.parameters[i].names.front(), group, i, rank,
                   group.shard.detach());
      if (!group.layout.trained) continue;
      for (const auto& [name, optimizer] : runtime.kept())
        load_optimizer(runtime, reader, name, *optimizer, group);
    }
  for (const auto& item : runtime.model().named_buffers())
    if (item.value().defined()) reader.read("model/" + item.key(), item.value());
}

}  // namespace

void save_sharded(FsdpRuntime& runtime, const std::filesystem::path& file, const State& more) {
  save(runtime, more, [&](const auto& write) { write(file); });
}

void save_sharded(FsdpRuntime& runtime, const CheckpointDirectory& directory, int64_t step,
                  const State& more) {
  save(runtime, more, [&](const auto& write) {
    directory.save(step, [&](const std::filesystem::path& path) { write(path / "state.pt"); });
  });
}

State load_sharded(FsdpRuntime& runtime, const std::filesystem::path& file) {
  const at::NoGradGuard no_grad;
  std::unique_ptr<StateReader> reader;
  // What fails on one rank is told to all, before and after the shards change.
  const auto together = [&](const std::function<void()>& part) {
    std::string error;
    try {
      part();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    share_error(runtime.world(), error, runtime.device());
  };
  together([&] {
    reader = std::make_unique<StateReader>(file);
    check_file(runtime, *reader);
  });
  runtime.zero_grad();
  runtime.forget_whole_units();
  together([&] { read_file(runtime, *reader); });
  return reader->state();
}

}  // namespace af::train
