// SPDX-License-Identifier: Apache-2.0
// Data-parallel training on the optical digits, with af's C++ libraries.
//
//   af-launch build/examples/digits --epochs 20       as many ranks as the job has workers
//   build/examples/digits                             alone: a world of one
//
// Every rank holds the model and computes gradients on its share of each batch; the batch of 64
// images is the same at every world size, and so is, up to rounding, the result. In an elastic run
// ranks go and come meanwhile: nothing here deals with it, DataParallel does. Rank 0 prints a line
// every second and after each epoch, and saves a checkpoint; a later start goes on from the newest.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

#include "af/train/background_saver.h"
#include "af/train/checkpoint.h"
#include "af/train/data_parallel.h"
#include "af/train/dealer.h"
#include "af/train/hdf5_dataset.h"
#include "af/train/session.h"
#include "af/world.h"
#include "examples/cpp/digits/model.h"
#include "examples/cpp/digits/options.h"
#include "examples/cpp/digits/progress.h"
#include "examples/cpp/digits/world.h"

namespace digits {
namespace {

struct Images {
  at::Tensor pixels;  // uint8 [n, 64]
  at::Tensor labels;  // int64 [n]
};

Images read_images(const std::string& file, const std::string& part, at::Device device) {
  const af::train::Hdf5Dataset pixels(file, part + "/images");
  const af::train::Hdf5Dataset labels(file, part + "/labels");
  return {pixels.read_all().to(device), labels.read_all().to(device, at::kLong)};
}

at::Tensor loss_of(const Images& images, const std::vector<int64_t>& rows, Model& model) {
  const at::Tensor index = at::tensor(rows).to(images.pixels.device());
  const at::Tensor logits = model.forward(images.pixels.index_select(0, index));
  return at::cross_entropy_loss(logits, images.labels.index_select(0, index));
}

// How many of this rank's share of the images are recognized, and how many there are.
std::vector<double> test(const Images& images, int rank, int world, Model& model) {
  const auto share = af::train::contiguous_share(images.pixels.size(0), rank, world);
  if (share.first == share.last) return {0, 0};
  const at::Tensor logits = model.forward(images.pixels.slice(0, share.first, share.last));
  const at::Tensor labels = images.labels.slice(0, share.first, share.last);
  return {logits.argmax(1).eq(labels).sum().item<double>(),
          static_cast<double>(share.last - share.first)};
}

// Down to nothing over the training. A function of the epoch alone, so a resumed training has it
// too.
void set_learning_rate(torch::optim::Adam& adam, const Options& options, int64_t epoch) {
  const double left = 1.0 - static_cast<double>(epoch) / static_cast<double>(options.epochs);
  for (auto& group : adam.param_groups())
    static_cast<torch::optim::AdamOptions&>(group.options()).lr(options.learning_rate * left);
}

void run(const Options& options) {
  at::set_num_threads(options.threads);
  const at::Device device = device_of_rank();
  const Images train = read_images(options.data, "train", device);
  const Images held_out = read_images(options.data, "test", device);
  Model model(options.seed);
  model.layers()->to(device);
  torch::optim::Adam adam(model.layers()->parameters(),
                          torch::optim::AdamOptions(options.learning_rate));
  af::train::Dealer dealer(train.pixels.size(0), options.batch, options.seed);
  at::Tensor sums = at::zeros({2}, at::kDouble);  // of this epoch: losses, images

  af::train::Session session = af::train::Session::from_environment();
  af::train::BackgroundSaver saver(
      af::train::CheckpointDirectory(options.checkpoints, options.keep),
      [&](const af::train::Checkpoint& saved, double seconds) {
        session.checkpoint(saved.path.string(), saved.step, seconds);
      });

  // Behind all that takes time: the ranks that train already wait for one that comes.
  af::World world = join(device);
  const auto first = [&] { return world.view().rank == 0; };
  af::train::DataParallelOptions parallel;
  parallel.changed = [&](int before, int now) {
    if (first()) printf("world %d -> %d, the training goes on\n", before, now);
  };
  af::train::DataParallel replicas(*model.layers(), world, parallel);
  replicas.keep("optimizer", adam);
  replicas.keep("data", dealer);
  replicas.keep("sums", sums);
  if (!options.checkpoints.empty()) replicas.save_with(saver);
  const auto found = replicas.resume();
  replicas.begin();
  if (first() && found) printf("resumed from %s\n", found->path.c_str());
  if (first())
    printf("world %d: %s\n", world.view().world_size, world.communicator().description().c_str());

  Progress progress(options.epochs * dealer.steps_of_epoch());
  const int64_t first_epoch = dealer.epoch();
  for (int64_t epoch = first_epoch; epoch < options.epochs; ++epoch) {
    const auto start = Progress::Clock::now();
    set_learning_rate(adam, options, epoch);
    while (const auto rows = replicas.next(epoch)) {
      replicas.zero_grad();
      at::Tensor loss;
      if (!rows->empty()) {  // the last batch of an epoch may leave nothing for some ranks
        loss = loss_of(train, *rows, model);
        loss.backward();
        std::this_thread::sleep_for(options.work * rows->size() / options.batch);
      }
      const auto step = replicas.step(static_cast<int64_t>(rows->size()), loss, adam);
      sums += at::tensor(
          {step.loss * static_cast<double>(step.samples), static_cast<double>(step.samples)},
          at::kDouble);
      if (progress.due(replicas.steps()) && first())
        printf("step %ld  epoch %ld  loss %.4f  world %d  left %s\n", replicas.steps(), epoch,
               step.loss, world.view().world_size, progress.left().c_str());
    }
    const auto tested =
        replicas.sum([&](int rank, int size) { return test(held_out, rank, size, model); });
    replicas.check_agreement();
    const double loss = sums[0].item<double>() / sums[1].item<double>();
    const double accuracy = tested[0] / tested[1];  // exact: every test image counted once
    sums.zero_();
    if (first()) {
      printf("epoch %2ld  loss %.4f  test accuracy %.4f  world %d  %.2f s  left %s\n", epoch, loss,
             accuracy, world.view().world_size, Progress::seconds_since(start),
             progress.left().c_str());
      session.report(replicas.steps(), epoch, {{"loss", loss}, {"test_accuracy", accuracy}});
    }
    replicas.checkpoint();
  }
  if (first_epoch >= options.epochs) {
    const auto tested =
        replicas.sum([&](int rank, int size) { return test(held_out, rank, size, model); });
    if (first())
      printf("nothing to do: %ld epochs are done  test accuracy %.4f\n", first_epoch,
             tested[0] / tested[1]);
  }
  replicas.finish();
  if (first() && !options.checkpoints.empty())
    printf("checkpoint %s\n", saver.directory().path_of(replicas.steps()).c_str());
}

}  // namespace
}  // namespace digits

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);  // whole lines at once, also into a pipe
  try {
    digits::run(digits::parse_options(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    fprintf(stderr, "digits: %s\n", error.what());
    return 1;
  }
}
