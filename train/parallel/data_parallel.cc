// SPDX-License-Identifier: Apache-2.0
#include "af/train/data_parallel.h"

#include <ATen/Functions.h>
#include <libdeflate.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>

#include "af/train/callback.h"
#include "af/train/flat_optimizer.h"
#include "af/train/module_state.h"
#include "af/train/random_state.h"
#include "af/train/trace.h"
#include "common/error.h"
#include "train/parallel/gradient_reducer.h"
#include "train/parallel/model_agreement.h"
#include "train/parallel/replica_checkpoint.h"
#include "train/parallel/state_broadcast.h"
#include "train/parallel/tensor_broadcast.h"

namespace af::train {
namespace {

using StepResult = DataParallel::StepResult;

uint32_t checksum(uint32_t sum, const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  return libdeflate_crc32(sum, plain.data_ptr(), plain.nbytes());
}

// Whether another world may do what this one could not. Ranks that are at different places of the
// program are told so; where it comes from the change of a world, the launcher starts all anew when
// it has happened a few times.
bool is_of_the_world(const CommunicatorError& error) {
  if (error.kind() == CommunicatorError::Kind::mismatch) warn_on_stderr(error.what());
  return error.kind() != CommunicatorError::Kind::invalid_argument;
}

at::Tensor to_tensor(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions(at::kLong));
}

std::vector<int64_t> to_vector(const at::Tensor& values) {
  const at::Tensor plain = values.to(at::kCPU, at::kLong).contiguous();
  return {plain.data_ptr<int64_t>(), plain.data_ptr<int64_t>() + plain.numel()};
}

State to_state(const OrderState& order) {
  State state = make_state();
  for (const auto& [name, number] : order.numbers) state.insert(name, number);
  for (const auto& [name, list] : order.lists) state.insert(name, to_tensor(list));
  return state;
}

OrderState to_order_state(const State& state) {
  OrderState order;
  for (const auto& entry : state) {
    const std::string& name = entry.key().toStringRef();
    if (entry.value().isInt())
      order.numbers[name] = entry.value().toInt();
    else
      order.lists[name] = to_vector(entry.value().toTensor());
  }
  return order;
}

// How far a rank has come. One that is in the training counts before one that has just come.
struct Progress {
  bool joined = false;
  int64_t steps = 0;
  int64_t calls = 0;  // since that step, of those that all ranks make
  auto order() const { return std::tie(joined, steps, calls); }
};

std::vector<Progress>::const_iterator furthest_of(const std::vector<Progress>& all) {
  return std::max_element(all.begin(), all.end(), [](const Progress& a, const Progress& b) {
    return a.order() < b.order();
  });
}

GradientReducer::Options reducer_options(const DataParallelOptions& options) {
  GradientReducer::Options reducer;
  reducer.limits = {std::min(options.first_bucket_bytes, options.bucket_bytes),
                    options.bucket_bytes};
  reducer.compression = options.compression;
  return reducer;
}

}  // namespace

struct DataParallel::Impl {
  enum class Scope { to_save, to_send };
  struct Kept {
    std::string name;
    bool of_program;  // changed by the program itself between its calls
    std::function<c10::IValue(Scope)> get;
    std::function<void(const c10::IValue&)> set;
  };

  Impl(torch::nn::Module& the_model, Communicator* communicator, World* the_world,
       DataParallelOptions the_options)
      : model(the_model),
        fixed(communicator),
        world(the_world),
        options(std::move(the_options)),
        reducer(model, reducer_options(options)),
        watch(std::make_shared<WorldWatch>(world)) {
    const auto parameters = model.parameters();
    if (!parameters.empty()) device = parameters.front().device();
  }

  torch::nn::Module& model;
  Communicator* fixed;  // one of these two
  World* world;
  DataParallelOptions options;
  at::Device device = at::kCPU;
  GradientReducer reducer;
  std::vector<Kept> kept;
  DataOrder* dealer = nullptr;
  BackgroundSaver* saver = nullptr;
  ReplicaCheckpoint replica_checkpoint;
  std::shared_ptr<WorldWatch> watch;
  bool saver_ready = false;  // it has memory for this rank's share in this world

  bool started = false;             // callbacks know of the training
  int64_t computing_since = 0;      // trace_now(); 0: not traced
  int64_t epoch_told = -1;          // likewise of the end of this epoch
  std::optional<int64_t> dealt;     // rows of this step
  std::optional<int64_t> expected;  // samples of this step, if known before backward
  int no_sync = 0;                  // guards that live

  bool joined = false;
  int64_t steps = 0;
  bool in_step = false;  // within step()
  StepResult last;       // of the last step
  // What the calls for all ranks since that step have given, and how many of them the program has
  // made: a rank that has come meanwhile makes them too, and finds the result.
  std::vector<std::vector<double>> results;
  std::size_t called = 0;
  bool change_agreed = false;
  bool save_agreed = false;

  bool elastic() const { return world != nullptr && world->elastic(); }
  Communicator& communicator() { return fixed != nullptr ? *fixed : world->communicator(); }
  int rank() const { return fixed != nullptr ? fixed->rank() : world->view().rank; }
  void check_joined() const {
    if (!joined) throw Error("DataParallel: begin() comes before the first call for all ranks");
  }

  // Says to the reducer how much the coming gradients count, where that is known.
  void expect();

  // state
  State collect(Scope scope) const;
  void apply(const State& state, bool of_program);
  std::string kept_names() const;

  // collective
  std::vector<Progress> compare(Communicator& comm) const;
  void synchronize(Communicator& comm, const std::vector<Progress>& all);
  void form();
  void next_world();
  void enter();
  WorldFlags flags(bool at_checkpoint) const;
  void agree(bool change, bool save);
  void tell_start();
  StepResult tell_step(const StepResult& result);
  std::vector<double> sum(Communicator& comm, std::vector<double> values, WorldFlags own);
  std::vector<double> call(const std::function<std::vector<double>(Communicator&)>& run);
  StepResult step(int64_t samples, double loss,
                  const std::function<void(GradientBuckets&)>& update);
  void prepare_saver();
  void save_checkpoint();
  void save_and_leave();
  void leave();
  uint64_t seed() const { return dealer != nullptr ? dealer->seed() : 0; }
};

void DataParallel::Impl::expect() {
  if (!expected) return;
  try {
    reducer.expect(communicator(), static_cast<double>(*expected));
  } catch (const CommunicatorError&) {  // step() will meet it, and can go on without this world
  }
}

// Everything but what step(), next() and the like do --------------------------------------------

State DataParallel::Impl::collect(Scope scope) const {
  State state = make_state();
  state.insert("step", steps);
  state.insert("model", state_of(model));
  for (const Kept& one : kept) state.insert(one.name, one.get(scope));
  return state;
}

void DataParallel::Impl::apply(const State& state, bool of_program) {
  const auto at = [&](const std::string& name) {
    const auto found = state.find(name);
    if (found == state.end()) throw Error::format("the state has no {}", name);
    return found->value();
  };
  try {
    steps = at("step").toInt();
    load_into(model, at("model").toGenericDict());
    for (const Kept& one : kept)
      if (of_program || !one.of_program) one.set(at(one.name));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // a value of another kind, a key that is missing
    const std::string text = error.what();
    throw Error::format("the state does not fit: {}", text.substr(0, text.find('\n')));
  }
}

std::string DataParallel::Impl::kept_names() const {
  std::string names;
  for (const Kept& one : kept) names += one.name + ";";
  return names;
}

// Checks that all ranks have the same model, and says how far each has come.
std::vector<Progress> DataParallel::Impl::compare(Communicator& comm) const {
  const ModelFingerprint print = fingerprint_of(model, kept_names());
  const std::vector<uint64_t> mine = {
      print.checksum, print.tensors, print.elements, joined ? 1U : 0U, static_cast<uint64_t>(steps),
      results.size()};
  const auto all = gather_numbers(comm, mine, device);
  std::vector<Progress> progress;
  for (std::size_t rank = 0; rank * mine.size() < all.size(); ++rank) {
    const uint64_t* one = all.data() + rank * mine.size();
    check_same_model(rank, {one[0], one[1], one[2]}, {all[0], all[1], all[2]});
    progress.push_back({one[3] != 0, static_cast<int64_t>(one[4]), static_cast<int64_t>(one[5])});
  }
  return progress;
}

// From one world to the next ---------------------------------------------------------------------

// Gives what the furthest rank has to those that have come less far.
void DataParallel::Impl::synchronize(Communicator& comm, const std::vector<Progress>& all) {
  const auto first = furthest_of(all);
  const Progress& mine = all[static_cast<std::size_t>(comm.rank())];
  const bool complete = std::all_of(all.begin(), all.end(), [&](const Progress& one) {
    return one.joined && one.order() == first->order();
  });
  if (complete) return;
  const int root = static_cast<int>(first - all.begin());
  const bool behind = !mine.joined || mine.order() != first->order();
  State sent = make_state();
  if (comm.rank() == root) {
    sent.insert("state", collect(Scope::to_send));
    sent.insert("last_samples", last.samples);
    sent.insert("last_loss", at::full({1}, last.loss, at::kDouble));
    sent.insert("save", save_agreed);
    State given = make_state();
    for (std::size_t i = 0; i < results.size(); ++i)
      given.insert(fmt::format("{:06}", i), at::tensor(results[i], at::TensorOptions(at::kDouble)));
    sent.insert("results", given);
  }
  const State got = broadcast_state(comm, root, &sent, behind, device);
  if (!behind || comm.rank() == root) return;
  // What the program itself changes is changed by a rank that is behind when its call returns.
  apply(got.at("state").toGenericDict(), /*of_program=*/!joined);
  if (!joined) seed_random(seed(), steps, rank(), device);
  last.samples = got.at("last_samples").toInt();
  last.loss = got.at("last_loss").toTensor().item<double>();
  save_agreed = got.at("save").toBool();
  results.clear();
  const State given = got.at("results").toGenericDict();
  for (std::size_t i = 0; i < given.size(); ++i) {
    const at::Tensor values = given.at(fmt::format("{:06}", i)).toTensor().cpu();
    results.emplace_back(values.data_ptr<double>(), values.data_ptr<double>() + values.numel());
  }
}

void DataParallel::Impl::form() {
  Communicator& comm = communicator();
  const auto all = compare(comm);
  reducer.allocate(comm, elastic(), static_cast<int>(furthest_of(all) - all.begin()));
  synchronize(comm, all);
  joined = true;
  saver_ready = false;
}

// Gives up the world and forms the next one, until that has worked.
void DataParallel::Impl::next_world() {
  const int before = world->view().world_size;
  for (;;) {
    const bool begun = in_step || (dealer != nullptr && dealer->in_step());
    change_agreed = false;
    if (world->next(joined ? steps : -1, joined && begun) == World::Next::leave) leave();
    const WorldView view = world->view();
    if (dealer != nullptr) {
      std::vector<int> was;
      int64_t furthest = -1;
      for (const WorldMember& member : view.members) {
        was.push_back(member.was);
        furthest = std::max(furthest, member.step);
      }
      const bool step_begun = std::any_of(
          view.members.begin(), view.members.end(),
          [&](const WorldMember& member) { return member.step == furthest && member.in_step; });
      dealer->change_world(view.rank, was, joined && step_begun && steps == furthest);
    }
    try {
      form();
      if (options.changed) options.changed(before, view.world_size);
      if (options.callbacks != nullptr && started)
        options.callbacks->world_change({view.rank, before, view.world_size, steps});
      return;
    } catch (const CommunicatorError& error) {
      if (!is_of_the_world(error)) throw;
    }
  }
}

// Where ranks are that have completed the same steps and calls: what has been agreed on is done.
void DataParallel::Impl::enter() {
  check_joined();
  if (world == nullptr) return;
  if (save_agreed && saver != nullptr) save_and_leave();
  if (change_agreed && elastic()) next_world();
}

// Behind the first step of a world: before it, optimizers have no state to make memory for.
void DataParallel::Impl::prepare_saver() {
  if (saver == nullptr || saver_ready) return;
  saver_ready = true;
  const int world_size = fixed != nullptr ? fixed->world_size() : world->view().world_size;
  saver->prepare(collect(Scope::to_save), rank(), world_size);
}

void DataParallel::Impl::save_checkpoint() {
  const uint64_t generation = fixed != nullptr ? fixed->generation() : world->view().generation;
  replica_checkpoint.save(saver, rank(), generation, steps, collect(Scope::to_save),
                          [watch = watch, generation] { return watch->lost(generation); });
}

void DataParallel::Impl::save_and_leave() {
  bool on_disk = rank() == 0;
  if (on_disk) {
    try {
      saver->flush();
    } catch (const std::exception& error) {
      warn_on_stderr(error.what());  // this one may have more luck
    }
    saver->save(steps, collect(Scope::to_save));
    saver->flush();
  }
  try {
    communicator().barrier().synchronize();  // the others wait for the disk of rank 0
    on_disk = true;
  } catch (const CommunicatorError&) {
  }
  if (on_disk) world->saved(saver->directory().path_of(steps).string(), steps);
  leave();
}

void DataParallel::Impl::leave() {
  if (saver != nullptr) {
    try {
      saver->flush();
    } catch (const std::exception& error) {
      warn_on_stderr(error.what());
    }
  }
  if (options.callbacks != nullptr && started)
    options.callbacks->end({EndInfo::How::leaving, steps});
  if (options.leave) options.leave();
  std::fflush(nullptr);
  std::exit(0);  // NOLINT(concurrency-mt-unsafe): where a program ends that returns from main()
}

// The calls for all ranks ------------------------------------------------------------------------

WorldFlags DataParallel::Impl::flags(bool at_checkpoint) const {
  if (world == nullptr) return {};
  WorldFlags own = world->flags(at_checkpoint);
  own.save = own.save && saver != nullptr;
  return own;
}

void DataParallel::Impl::tell_start() {
  if (options.callbacks == nullptr || std::exchange(started, true)) return;
  options.callbacks->start({rank(), communicator().world_size(), steps});
}

StepResult DataParallel::Impl::tell_step(const StepResult& result) {
  if (options.callbacks != nullptr)
    options.callbacks->step(
        {steps, dealer != nullptr ? dealer->epoch() : 0, result.samples, result.loss});
  return result;
}

void DataParallel::Impl::agree(bool change, bool save) {
  if (world == nullptr) return;
  world->agree(change, save);
  change_agreed = change_agreed || change;
  save_agreed = save_agreed || save;
}

std::vector<double> DataParallel::Impl::sum(Communicator& comm, std::vector<double> values,
                                            WorldFlags own) {
  values.push_back(own.change ? 1 : 0);
  values.push_back(own.save ? 1 : 0);
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor sums = at::from_blob(values.data(), {count}, at::kDouble).to(device);
  comm.all_reduce(sums.data_ptr(), sums.data_ptr(), values.size(), DataType::f64).synchronize();
  at::from_blob(values.data(), {count}, at::kDouble).copy_(sums);
  agree(values[values.size() - 2] > 0, values.back() > 0);
  values.resize(values.size() - 2);
  return values;
}

std::vector<double> DataParallel::Impl::call(
    const std::function<std::vector<double>(Communicator&)>& run) {
  enter();
  while (results.size() <= called) {
    try {
      results.push_back(run(communicator()));
    } catch (const CommunicatorError& error) {
      if (!elastic() || !is_of_the_world(error)) throw;
      next_world();  // which brings the result, where others have it
    }
  }
  return results[called++];
}

StepResult DataParallel::Impl::step(int64_t samples, double loss,
                                    const std::function<void(GradientBuckets&)>& update) {
  if (samples < 0) throw Error::format("gradients of {} samples", samples);
  check_joined();
  // What the program has done between zero_grad() and here; spans of its own lie within.
  if (const int64_t since = std::exchange(computing_since, 0); since != 0)
    detail::add_span(TraceKind::compute, "forward and backward", since, 0);
  const int64_t before = steps;
  in_step = true;
  expected.reset();
  const GradientReducer::Share share{samples, static_cast<double>(samples), loss};
  std::optional<StepSums> sums;
  while (!sums) {
    try {
      const TraceSpan span(TraceKind::communication, "wait for gradients");
      sums = reducer.finish(communicator(), share, flags(false));
    } catch (const CommunicatorError& error) {
      if (!elastic() || !is_of_the_world(error)) throw;
      const at::NoGradGuard no_grad;
      next_world();
      if (steps > before) {  // others had the result, and this rank has their state now
        in_step = false;
        called = 0;
        return last;
      }
    }
  }
  agree(sums->change, sums->save);
  update(reducer.gradients());
  ++steps;
  in_step = false;
  last.samples = static_cast<int64_t>(sums->samples);
  last.loss =
      sums->samples > 0 ? sums->loss / sums->samples : std::numeric_limits<double>::quiet_NaN();
  results.clear();
  called = 0;
  if (dealer != nullptr && dealer->in_step()) dealer->complete();
  if (world != nullptr) world->step_done(steps);
  prepare_saver();
  return last;
}

// The class --------------------------------------------------------------------------------------

DataParallel::DataParallel(torch::nn::Module& model, Communicator& world,
                           DataParallelOptions options)
    : impl_(std::make_unique<Impl>(model, &world, nullptr, std::move(options))) {
  const at::NoGradGuard no_grad;
  impl_->compare(world);
  impl_->reducer.allocate(world, /*kept=*/false, /*layout_root=*/0);
  impl_->joined = true;
  broadcast_parameters();
}

DataParallel::DataParallel(torch::nn::Module& model, World& world, DataParallelOptions options)
    : impl_(std::make_unique<Impl>(model, nullptr, &world, std::move(options))) {
  if (impl_->reducer.empty()) throw Error("DataParallel: no parameter needs a gradient");
}

DataParallel::~DataParallel() {
  impl_->watch->end();
}

void DataParallel::keep(const std::string& name, torch::optim::Optimizer& optimizer) {
  (void)state_of(optimizer, impl_->model);  // throws for one of another kind
  impl_->kept.push_back({name, false,
                         [this, &optimizer](auto) { return state_of(optimizer, impl_->model); },
                         [this, &optimizer](const c10::IValue& value) {
                           load_into(optimizer, impl_->model, value.toGenericDict());
                         }});
}

void DataParallel::keep(const std::string& name, DataOrder& dealer) {
  if (impl_->dealer != nullptr) throw Error("DataParallel: a second dealer is kept");
  impl_->dealer = &dealer;
  if (impl_->fixed != nullptr) dealer.set_world(impl_->fixed->rank(), impl_->fixed->world_size());
  impl_->kept.push_back({name, false,
                         [&dealer](Impl::Scope scope) {
                           return to_state(dealer.save(scope == Impl::Scope::to_save
                                                           ? DataOrder::Scope::to_save
                                                           : DataOrder::Scope::to_send));
                         },
                         [&dealer](const c10::IValue& value) {
                           dealer.restore(to_order_state(value.toGenericDict()));
                         }});
}

void DataParallel::keep(const std::string& name, const at::Tensor& values) {
  impl_->kept.push_back({name, true, [values](auto) { return c10::IValue(values.detach()); },
                         [name, values](const c10::IValue& value) {
                           const at::NoGradGuard no_grad;
                           const at::Tensor saved = value.toTensor();
                           if (saved.sizes() != values.sizes())
                             throw Error::format("{} has another shape in the state", name);
                           at::Tensor(values.detach()).copy_(saved);
                         }});
}

void DataParallel::keep(const std::string& name, int64_t& value) {
  impl_->kept.push_back({name, true, [&value](auto) { return c10::IValue(value); },
                         [&value](const c10::IValue& saved) { value = saved.toInt(); }});
}

void DataParallel::keep(const std::string& name, std::function<c10::IValue()> get,
                        std::function<void(const c10::IValue&)> set) {
  impl_->kept.push_back(
      {name, false, [get = std::move(get)](auto) { return get(); }, std::move(set)});
}

void DataParallel::save_with(BackgroundSaver& saver) {
  impl_->saver = &saver;
}

State DataParallel::state() const {
  return impl_->collect(Impl::Scope::to_save);
}

void DataParallel::load(const State& state) {
  Impl& impl = *impl_;
  impl.apply(state, /*of_program=*/true);
  restore_random(state, impl.seed(), impl.steps, impl.rank(), impl.device);
}

std::optional<Checkpoint> DataParallel::resume() {
  if (impl_->saver == nullptr) return std::nullopt;
  for (;;) {
    const auto found = impl_->saver->directory().find_newest();
    if (!found) return std::nullopt;
    try {
      load(read_state(found->path / "state.pt"));
      return found;
    } catch (const Error& error) {
      // A rank that trains already may have removed it meanwhile, for newer ones.
      if (std::filesystem::exists(found->path))
        throw Error::format("checkpoint {}: {}", found->path.string(), error.what());
    }
  }
}

void DataParallel::begin() {
  Impl& impl = *impl_;
  if (impl.world == nullptr || impl.joined) return impl.tell_start();
  const at::NoGradGuard no_grad;
  const WorldView view = impl.world->view();
  if (impl.dealer != nullptr) impl.dealer->set_world(view.rank, view.world_size);
  try {
    impl.form();
  } catch (const CommunicatorError& error) {
    if (!impl.elastic() || !is_of_the_world(error)) throw;
    impl.next_world();
  }
  impl.tell_start();
}

std::optional<std::vector<int64_t>> DataParallel::next(int64_t epoch) {
  if (impl_->dealer == nullptr) throw Error("DataParallel: next() without a dealer (see keep())");
  if (!impl_->dealer->in_step()) impl_->enter();
  auto rows = impl_->dealer->next(epoch);
  impl_->dealt = rows ? std::optional(static_cast<int64_t>(rows->size())) : std::nullopt;
  if (!rows && impl_->options.callbacks != nullptr &&
      std::exchange(impl_->epoch_told, epoch) != epoch)
    impl_->options.callbacks->epoch({epoch, impl_->steps});
  return rows;
}

void DataParallel::zero_grad(std::optional<int64_t> samples) {
  Impl& impl = *impl_;
  if (impl.dealer == nullptr) impl.enter();
  impl.check_joined();
  impl.tell_start();
  impl.reducer.zero();
  impl.computing_since = tracing() ? trace_now() : 0;
  impl.expected = samples ? samples : impl.dealt;
  if (impl.no_sync == 0) impl.expect();
}

NoSync DataParallel::no_sync() {
  Impl& impl = *impl_;
  ++impl.no_sync;
  impl.reducer.forget();
  return NoSync([&impl] {
    if (--impl.no_sync == 0) impl.expect();
  });
}

DataParallel::StepResult DataParallel::step(int64_t samples, const at::Tensor& loss,
                                            torch::optim::Optimizer& optimizer) {
  const double value = samples > 0 && loss.defined() ? loss.item<double>() : 0;
  auto* flat = dynamic_cast<FlatOptimizer*>(&optimizer);
  return impl_->tell_step(impl_->step(samples, value, [&](GradientBuckets& gradients) {
    const TraceSpan span(TraceKind::compute, "optimizer");
    if (flat != nullptr)
      flat->scale_gradients(gradients.scale);  // in its own pass
    else
      apply_scale(gradients);
    optimizer.step();
  }));
}

DataParallel::StepResult DataParallel::step(int64_t samples, double loss,
                                            const std::function<void()>& update) {
  return impl_->tell_step(impl_->step(samples, loss, [&](GradientBuckets& gradients) {
    const TraceSpan span(TraceKind::compute, "optimizer");
    apply_scale(gradients);
    update();
  }));
}

int64_t DataParallel::steps() const {
  return impl_->steps;
}

std::vector<double> DataParallel::sum(
    const std::function<std::vector<double>(int rank, int world)>& part) {
  const at::NoGradGuard no_grad;
  return impl_->call([&](Communicator& comm) {
    return impl_->sum(comm, part(comm.rank(), comm.world_size()), impl_->flags(false));
  });
}

void DataParallel::check_agreement() {
  const at::NoGradGuard no_grad;
  const auto differing = impl_->call([&](Communicator& comm) {
    uint32_t sum = 0;
    for (const auto& parameter : impl_->model.parameters()) sum = checksum(sum, parameter);
    for (const auto& buffer : impl_->model.buffers()) sum = checksum(sum, buffer);
    const auto all = gather_numbers(comm, {sum}, impl_->device);
    std::vector<double> others;
    for (std::size_t rank = 1; rank < all.size(); ++rank)
      if (all[rank] != all[0]) others.push_back(static_cast<double>(rank));
    return others;
  });
  if (!differing.empty())
    throw Error::format(
        "the parameters of rank {} are not those of rank 0: the copies of the model "
        "have drifted apart",
        fmt::join(differing, ", "));
}

void DataParallel::checkpoint() {
  Impl& impl = *impl_;
  const at::NoGradGuard no_grad;
  // A report with a checkpoint: a change that waits for one is agreed on here.
  const std::vector<double> nothing;
  impl.call([&](Communicator& comm) {
    impl.replica_checkpoint.agree(comm, impl.device, impl.saver, impl.steps, state());
    return impl.sum(comm, nothing, impl.flags(true));
  });
  if (impl.dealer != nullptr && impl.dealer->at_end())
    impl.dealer->finish_epoch(impl.dealer->epoch());
  impl.save_checkpoint();
}

void DataParallel::finish() {
  Impl& impl = *impl_;
  impl.enter();
  if (impl.saver != nullptr) impl.saver->flush();
  const std::vector<double> nothing;
  impl.call([&](Communicator& comm) { return impl.sum(comm, nothing, {}); });
  if (impl.options.callbacks != nullptr)
    impl.options.callbacks->end({EndInfo::How::finished, impl.steps});
  if (impl.world != nullptr) impl.world->finished();
}

int64_t DataParallel::average_gradients(int64_t samples) {
  if (samples < 0) throw Error::format("gradients of {} samples", samples);
  impl_->check_joined();
  impl_->expected.reset();
  const StepSums sums =
      impl_->reducer.finish(impl_->communicator(), {samples, static_cast<double>(samples), 0}, {});
  apply_scale(impl_->reducer.gradients());
  return static_cast<int64_t>(sums.samples);
}

void DataParallel::broadcast_parameters() {
  Communicator& comm = impl_->communicator();
  broadcast_tensors(comm, impl_->model.parameters(), /*root=*/0);
  broadcast_tensors(comm, impl_->model.buffers(), /*root=*/0);
}

}  // namespace af::train
