// SPDX-License-Identifier: Apache-2.0
// Data-parallel training on the optical digits, with af's C++ libraries.
//
//   af-launch build/examples/digits --epochs 20       as many ranks as the job has workers
//   build/examples/digits                             alone: a world of one
//
// Every rank holds the model and computes gradients on its share of each batch; the batch of 64
// images is the same at every world size, and so is, up to rounding, the result. Rank 0 prints a
// line after each epoch and saves a checkpoint; a later start goes on from the newest.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <cstdio>
#include <exception>

#include "af/communicator.h"
#include "af/train/checkpoint.h"
#include "af/train/data_parallel.h"
#include "af/train/dealer.h"
#include "af/train/hdf5_dataset.h"
#include "af/train/metrics.h"
#include "af/train/module_state.h"
#include "af/train/session.h"
#include "examples/cpp/digits/model.h"
#include "examples/cpp/digits/options.h"
#include "examples/cpp/digits/world.h"

namespace digits {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Images {
  at::Tensor pixels;  // uint8 [n, 64]
  at::Tensor labels;  // int64 [n]
};

Images read_images(const std::string& file, const std::string& part, at::Device device) {
  const af::train::Hdf5Dataset pixels(file, part + "/images");
  const af::train::Hdf5Dataset labels(file, part + "/labels");
  return {pixels.read_all().to(device), labels.read_all().to(device, at::kLong)};
}

// Sums over this rank's images, to be added up over the ranks.
struct Sums {
  double loss = 0;
  double right = 0;
  double images = 0;
};

Sums train_epoch(const Images& images, int64_t epoch, af::train::Dealer& dealer, Model& model,
                 af::train::DataParallel& replicas, torch::optim::Adam& adam) {
  Sums sums;
  while (const auto rows = dealer.next(epoch)) {
    replicas.zero_grad();
    // The last batch of an epoch may leave nothing for some ranks; they still average.
    if (!rows->empty()) {
      const at::Tensor index = at::tensor(*rows).to(images.pixels.device());
      const at::Tensor logits = model.forward(images.pixels.index_select(0, index));
      const at::Tensor loss = at::cross_entropy_loss(logits, images.labels.index_select(0, index));
      loss.backward();
      sums.loss += loss.item<double>() * static_cast<double>(rows->size());
      sums.images += static_cast<double>(rows->size());
    }
    replicas.average_gradients(static_cast<int64_t>(rows->size()));
    adam.step();
    dealer.complete();
  }
  return sums;
}

Sums test(const Images& images, const af::Communicator& world, Model& model) {
  const at::NoGradGuard no_grad;
  const auto share =
      af::train::contiguous_share(images.pixels.size(0), world.rank(), world.world_size());
  Sums sums;
  sums.images = static_cast<double>(share.last - share.first);
  if (share.first == share.last) return sums;
  const at::Tensor logits = model.forward(images.pixels.slice(0, share.first, share.last));
  const at::Tensor labels = images.labels.slice(0, share.first, share.last);
  sums.right = logits.argmax(1).eq(labels).sum().item<double>();
  return sums;
}

// Down to nothing over the training. A function of the epoch alone, so a resumed training has it
// too.
void set_learning_rate(torch::optim::Adam& adam, const Options& options, int64_t epoch) {
  const double left = 1.0 - static_cast<double>(epoch) / static_cast<double>(options.epochs);
  for (auto& group : adam.param_groups())
    static_cast<torch::optim::AdamOptions&>(group.options()).lr(options.learning_rate * left);
}

af::train::State everything(Model& model, const torch::optim::Adam& adam, int64_t epoch) {
  af::train::State state = af::train::make_state();
  state.insert("model", af::train::state_of(*model.layers()));
  state.insert("optimizer", af::train::state_of(adam, *model.layers()));
  state.insert("epoch", epoch);
  return state;
}

void run(const Options& options) {
  at::set_num_threads(options.threads);
  const at::Device device = device_of_rank();
  af::Communicator world = connect(device);
  af::train::Session session = af::train::Session::from_environment();
  const bool first = world.rank() == 0;

  const Images train = read_images(options.data, "train", device);
  const Images held_out = read_images(options.data, "test", device);
  Model model(options.seed);
  model.layers()->to(device);
  torch::optim::Adam adam(model.layers()->parameters(),
                          torch::optim::AdamOptions(options.learning_rate));
  af::train::Dealer dealer(train.pixels.size(0), options.batch, options.seed);
  dealer.set_world(world.rank(), world.world_size());

  // Every rank loads the checkpoint by itself: they share the file system, and check_agreement()
  // below would name a rank that found another one.
  const af::train::CheckpointDirectory directory(options.checkpoints, options.keep);
  int64_t next_epoch = 0;
  if (!options.checkpoints.empty())
    if (const auto found = directory.find_newest()) {
      const auto state = af::train::read_state(found->path / "state.pt");
      af::train::load_into(*model.layers(), state.at("model").toGenericDict());
      af::train::load_into(adam, *model.layers(), state.at("optimizer").toGenericDict());
      next_epoch = state.at("epoch").toInt() + 1;
      if (first) printf("resumed from %s\n", found->path.c_str());
    }
  af::train::DataParallel replicas(*model.layers(), world);
  if (first) printf("world %d: %s\n", world.world_size(), world.description().c_str());

  for (int64_t epoch = next_epoch; epoch < options.epochs; ++epoch) {
    const auto start = Clock::now();
    set_learning_rate(adam, options, epoch);
    const Sums learned = train_epoch(train, epoch, dealer, model, replicas, adam);
    const Sums tested = test(held_out, world, model);
    const auto sums = af::train::sum_over_ranks(
        world, {learned.loss, learned.images, tested.right, tested.images});
    const double loss = sums[0] / sums[1];
    const double accuracy = sums[2] / sums[3];  // exact: every test image counted once
    replicas.check_agreement();
    if (!first) continue;

    printf("epoch %2ld  loss %.4f  test accuracy %.4f  world %d  %.2f s\n", epoch, loss, accuracy,
           world.world_size(), seconds_since(start));
    fflush(stdout);
    const int64_t step = (epoch + 1) * dealer.steps_of_epoch();
    session.report(step, epoch, {{"loss", loss}, {"test_accuracy", accuracy}});
    if (options.checkpoints.empty()) continue;
    const auto begin = Clock::now();
    const auto saved = directory.save(step, [&](const std::filesystem::path& where) {
      af::train::write_state(where / "state.pt", everything(model, adam, epoch));
    });
    session.checkpoint(saved.path.string(), step, seconds_since(begin));
    if (epoch + 1 == options.epochs) printf("checkpoint %s\n", saved.path.c_str());
  }
  if (next_epoch >= options.epochs) {
    const Sums tested = test(held_out, world, model);
    const auto sums = af::train::sum_over_ranks(world, {tested.right, tested.images});
    if (first)
      printf("nothing to do: %ld epochs are done  test accuracy %.4f\n", next_epoch,
             sums[0] / sums[1]);
  }
  // No rank leaves while rank 0 still writes: the run would be ended under it.
  world.barrier().synchronize();
}

}  // namespace
}  // namespace digits

int main(int argc, char** argv) {
  try {
    digits::run(digits::parse_options(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    fprintf(stderr, "digits: %s\n", error.what());
    return 1;
  }
}
