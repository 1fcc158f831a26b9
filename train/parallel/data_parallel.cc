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

#include "af/train/module_state.h"
#include "common/error.h"
#include "train/parallel/replica_buckets.h"
#include "train/parallel/state_broadcast.h"

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

State to_state(const Dealer::State& dealt) {
  State state = make_state();
  state.insert("rows", dealt.rows);
  state.insert("seed", static_cast<int64_t>(dealt.seed));
  state.insert("epoch", dealt.epoch);
  state.insert("position", dealt.position);
  state.insert("left_over", to_tensor(dealt.left_over));
  if (dealt.dealt_to > 0) {
    state.insert("dealt_to", static_cast<int64_t>(dealt.dealt_to));
    state.insert("dealt_as",
                 to_tensor(std::vector<int64_t>(dealt.dealt_as.begin(), dealt.dealt_as.end())));
  }
  return state;
}

Dealer::State to_dealer_state(const State& state) {
  Dealer::State dealt;
  dealt.rows = state.at("rows").toInt();
  dealt.seed = static_cast<uint64_t>(state.at("seed").toInt());
  dealt.epoch = state.at("epoch").toInt();
  dealt.position = state.at("position").toInt();
  dealt.left_over = to_vector(state.at("left_over").toTensor());
  if (!state.contains("dealt_to")) return dealt;
  dealt.dealt_to = static_cast<int>(state.at("dealt_to").toInt());
  for (const int64_t as : to_vector(state.at("dealt_as").toTensor()))
    dealt.dealt_as.push_back(static_cast<int>(as));
  return dealt;
}

// How far a rank has come. One that is in the training counts before one that has just come.
struct Progress {
  bool joined = false;
  int64_t steps = 0;
  int64_t calls = 0;  // since that step, of those that all ranks make
  auto order() const { return std::tie(joined, steps, calls); }
};

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
        buckets(model, options.bucket_bytes) {
    const auto parameters = model.parameters();
    if (!parameters.empty()) device = parameters.front().device();
  }

  torch::nn::Module& model;
  Communicator* fixed;  // one of these two
  World* world;
  DataParallelOptions options;
  at::Device device = at::kCPU;
  ReplicaBuckets buckets;
  std::vector<Kept> kept;
  Dealer* dealer = nullptr;
  BackgroundSaver* saver = nullptr;

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

  // state
  State collect(Scope scope) const;
  void apply(const State& state, bool of_program);
  std::vector<at::Tensor> others() const;
  std::string layout() const;

  // collective
  std::vector<uint64_t> gather(Communicator& comm, std::vector<uint64_t> mine) const;
  std::vector<Progress> compare(Communicator& comm) const;
  void synchronize(Communicator& comm, const std::vector<Progress>& all);
  void form();
  void next_world();
  void enter();
  WorldFlags flags(bool at_checkpoint) const;
  void agree(bool change, bool save);
  std::vector<double> sum(Communicator& comm, std::vector<double> values, WorldFlags own);
  std::vector<double> call(const std::function<std::vector<double>(Communicator&)>& run);
  void save_and_leave();
  void leave();
};

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

// Buffers, and parameters that are not trained.
std::vector<at::Tensor> DataParallel::Impl::others() const {
  std::vector<at::Tensor> all;
  for (const auto& parameter : model.parameters())
    if (!parameter.requires_grad()) all.push_back(parameter.detach());
  for (const auto& buffer : model.buffers()) all.push_back(buffer.detach());
  return all;
}

std::string DataParallel::Impl::layout() const {
  std::string text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    text += fmt::format("{} {} [{}] {};", name, c10::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ","),
                        tensor.requires_grad());
  };
  for (const auto& item : model.named_parameters()) add(item.key(), item.value());
  for (const auto& item : model.named_buffers()) add(item.key(), item.value());
  for (const Kept& one : kept) text += one.name + ";";
  return text;
}

// The values of all ranks, one after the other. They travel in tensors on the model's device: NCCL
// takes no host memory.
std::vector<uint64_t> DataParallel::Impl::gather(Communicator& comm,
                                                 std::vector<uint64_t> mine) const {
  const auto count = static_cast<int64_t>(mine.size());
  const at::Tensor in = at::from_blob(mine.data(), {count}, at::kLong).to(device);
  const at::Tensor out = at::empty({count * comm.world_size()}, in.options());
  comm.all_gather(in.data_ptr(), out.data_ptr(), mine.size(), DataType::u64).synchronize();
  const at::Tensor all = out.cpu();
  const int64_t* values = all.data_ptr<int64_t>();
  return std::vector<uint64_t>(values, values + all.numel());
}

// Checks that all ranks have the same model, and says how far each has come.
std::vector<Progress> DataParallel::Impl::compare(Communicator& comm) const {
  const std::string text = layout();
  uint64_t tensors = 0;
  uint64_t elements = 0;
  for (const auto& tensors_of : {model.parameters(), model.buffers()})
    for (const auto& tensor : tensors_of) {
      ++tensors;
      elements += static_cast<uint64_t>(tensor.numel());
    }
  const std::vector<uint64_t> mine = {libdeflate_crc32(0, text.data(), text.size()),
                                      tensors,
                                      elements,
                                      joined ? 1U : 0U,
                                      static_cast<uint64_t>(steps),
                                      results.size()};
  const auto all = gather(comm, mine);
  std::vector<Progress> progress;
  for (std::size_t rank = 0; rank * mine.size() < all.size(); ++rank) {
    const uint64_t* one = all.data() + rank * mine.size();
    if (one[0] != all[0])
      throw Error::format(
          "rank {} has another model than rank 0 ({} tensors with {} elements, against {} with "
          "{}): names, shapes and types must be the same on all ranks, and what is kept with it",
          rank, one[1], one[2], all[1], all[2]);
    progress.push_back({one[3] != 0, static_cast<int64_t>(one[4]), static_cast<int64_t>(one[5])});
  }
  return progress;
}

// From one world to the next ---------------------------------------------------------------------

// Gives what the furthest rank has to those that have come less far.
void DataParallel::Impl::synchronize(Communicator& comm, const std::vector<Progress>& all) {
  const auto first =
      std::max_element(all.begin(), all.end(),
                       [](const Progress& a, const Progress& b) { return a.order() < b.order(); });
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
  buckets.allocate(comm, elastic());
  synchronize(comm, all);
  joined = true;
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

// The class --------------------------------------------------------------------------------------

DataParallel::DataParallel(torch::nn::Module& model, Communicator& world,
                           DataParallelOptions options)
    : impl_(std::make_unique<Impl>(model, &world, nullptr, std::move(options))) {
  const at::NoGradGuard no_grad;
  impl_->compare(world);
  impl_->buckets.allocate(world, /*kept=*/false);
  impl_->joined = true;
  broadcast_parameters();
}

DataParallel::DataParallel(torch::nn::Module& model, World& world, DataParallelOptions options)
    : impl_(std::make_unique<Impl>(model, nullptr, &world, std::move(options))) {
  if (impl_->buckets.empty()) throw Error("DataParallel: no parameter needs a gradient");
}

DataParallel::~DataParallel() = default;

void DataParallel::keep(const std::string& name, torch::optim::Optimizer& optimizer) {
  (void)state_of(optimizer, impl_->model);  // throws for one of another kind
  impl_->kept.push_back({name, false,
                         [this, &optimizer](auto) { return state_of(optimizer, impl_->model); },
                         [this, &optimizer](const c10::IValue& value) {
                           load_into(optimizer, impl_->model, value.toGenericDict());
                         }});
}

void DataParallel::keep(const std::string& name, Dealer& dealer) {
  if (impl_->dealer != nullptr) throw Error("DataParallel: a second dealer is kept");
  impl_->dealer = &dealer;
  if (impl_->fixed != nullptr) dealer.set_world(impl_->fixed->rank(), impl_->fixed->world_size());
  impl_->kept.push_back({name, false,
                         [&dealer](Impl::Scope scope) {
                           return to_state(scope == Impl::Scope::to_save ? dealer.state_to_save()
                                                                         : dealer.state());
                         },
                         [&dealer](const c10::IValue& value) {
                           dealer.load(to_dealer_state(value.toGenericDict()));
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

void DataParallel::save_with(BackgroundSaver& saver) {
  impl_->saver = &saver;
}

State DataParallel::state() const {
  return impl_->collect(Impl::Scope::to_save);
}

void DataParallel::load(const State& state) {
  impl_->apply(state, /*of_program=*/true);
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
  if (impl.world == nullptr || impl.joined) return;
  const at::NoGradGuard no_grad;
  const WorldView view = impl.world->view();
  if (impl.dealer != nullptr) impl.dealer->set_world(view.rank, view.world_size);
  try {
    impl.form();
  } catch (const CommunicatorError& error) {
    if (!impl.elastic() || !is_of_the_world(error)) throw;
    impl.next_world();
  }
}

std::optional<std::vector<int64_t>> DataParallel::next(int64_t epoch) {
  if (impl_->dealer == nullptr) throw Error("DataParallel: next() without a dealer (see keep())");
  if (!impl_->dealer->in_step()) impl_->enter();
  return impl_->dealer->next(epoch);
}

void DataParallel::zero_grad() {
  const at::NoGradGuard no_grad;
  if (impl_->dealer == nullptr) impl_->enter();
  impl_->check_joined();
  impl_->buckets.zero();
}

DataParallel::StepResult DataParallel::step(int64_t samples, const at::Tensor& loss,
                                            torch::optim::Optimizer& optimizer) {
  const double value = samples > 0 && loss.defined() ? loss.item<double>() : 0;
  return step(samples, value, [&] { optimizer.step(); });
}

DataParallel::StepResult DataParallel::step(int64_t samples, double loss,
                                            const std::function<void()>& update) {
  if (samples < 0) throw Error::format("gradients of {} samples", samples);
  Impl& impl = *impl_;
  impl.check_joined();
  const int64_t before = impl.steps;
  impl.in_step = true;
  std::optional<ReplicaBuckets::Sums> sums;
  while (!sums) {
    try {
      sums = impl.buckets.reduce(impl.communicator(), samples, loss, impl.flags(false));
    } catch (const CommunicatorError& error) {
      if (!impl.elastic() || !is_of_the_world(error)) throw;
      const at::NoGradGuard no_grad;
      impl.next_world();
      if (impl.steps > before) {  // others had the result, and this rank has their state now
        impl.in_step = false;
        impl.called = 0;
        return impl.last;
      }
    }
  }
  impl.agree(sums->change, sums->save);
  impl.buckets.show_reduced();
  update();
  ++impl.steps;
  impl.in_step = false;
  impl.last.samples = static_cast<int64_t>(sums->samples);
  impl.last.loss =
      sums->samples > 0 ? sums->loss / sums->samples : std::numeric_limits<double>::quiet_NaN();
  impl.results.clear();
  impl.called = 0;
  if (impl.dealer != nullptr && impl.dealer->in_step()) impl.dealer->complete();
  if (impl.world != nullptr) impl.world->step_done(impl.steps);
  return impl.last;
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
    const auto all = impl_->gather(comm, {sum});
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
  impl.call([&](Communicator& comm) { return impl.sum(comm, nothing, impl.flags(true)); });
  if (impl.dealer != nullptr && impl.dealer->at_end())
    impl.dealer->finish_epoch(impl.dealer->epoch());
  if (impl.saver != nullptr && impl.rank() == 0) impl.saver->save(impl.steps, state());
}

void DataParallel::finish() {
  Impl& impl = *impl_;
  impl.enter();
  if (impl.saver != nullptr) impl.saver->flush();
  const std::vector<double> nothing;
  impl.call([&](Communicator& comm) { return impl.sum(comm, nothing, {}); });
  if (impl.world != nullptr) impl.world->finished();
}

int64_t DataParallel::average_gradients(int64_t samples) {
  if (samples < 0) throw Error::format("gradients of {} samples", samples);
  impl_->check_joined();
  const auto sums = impl_->buckets.reduce(impl_->communicator(), samples, 0, {});
  impl_->buckets.show_reduced();
  return static_cast<int64_t>(sums.samples);
}

void DataParallel::broadcast_parameters() {
  const at::NoGradGuard no_grad;
  Communicator& comm = impl_->communicator();
  impl_->buckets.broadcast_parameters(comm);
  for (const at::Tensor& tensor : impl_->others()) {
    const at::Tensor plain = tensor.contiguous();
    comm.broadcast(plain.data_ptr(), plain.data_ptr(), plain.nbytes(), DataType::u8, /*root=*/0)
        .synchronize();
    if (!plain.is_same(tensor)) at::Tensor(tensor).copy_(plain);
  }
}

}  // namespace af::train
