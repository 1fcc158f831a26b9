// SPDX-License-Identifier: Apache-2.0
// A DataParallel's way from one world to the next, or out of the training.
#include <ATen/Functions.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "af/train/callback.h"
#include "af/train/random_state.h"
#include "common/error.h"
#include "train/parallel/data_parallel_impl.h"
#include "train/parallel/model_agreement.h"
#include "train/parallel/state_broadcast.h"

namespace af::train {
namespace {

std::vector<Progress>::const_iterator furthest_of(const std::vector<Progress>& all) {
  return std::max_element(all.begin(), all.end(), [](const Progress& a, const Progress& b) {
    return a.order() < b.order();
  });
}

}  // namespace

// Ranks that are at different places of the program are told so; where it comes from the change of
// a world, the launcher starts all anew when it has happened a few times.
bool is_of_the_world(const CommunicatorError& error) {
  if (error.kind() == CommunicatorError::Kind::mismatch) warn_on_stderr(error.what());
  return error.kind() != CommunicatorError::Kind::invalid_argument;
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

}  // namespace af::train
