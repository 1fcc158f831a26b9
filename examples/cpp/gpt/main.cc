// SPDX-License-Identifier: Apache-2.0
// Trains a small GPT data-parallel on a text, then fine-tunes it on instructions, with af's C++
// libraries. docs/guide/language-model.md walks through it.
//
//   af-launch build/examples/gpt --checkpoints base
//   af-launch build/examples/gpt --from base --text examples/data/instructions.txt
//   build/examples/gpt                                alone: a world of one
//
// Every rank holds the model and computes gradients on its share of each batch. In an elastic run
// ranks go and come meanwhile: nothing here deals with it, DataParallel does. Rank 0 prints a line
// after each epoch, reports it, and saves a checkpoint; a later start goes on from the newest.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "af/train/background_saver.h"
#include "af/train/callback.h"
#include "af/train/checkpoint.h"
#include "af/train/data_parallel.h"
#include "af/train/dealer.h"
#include "af/train/gradient_norm.h"
#include "af/train/loggers.h"
#include "af/train/lr_schedule.h"
#include "af/train/mlflow_logger.h"
#include "af/train/module_state.h"
#include "af/train/session.h"
#include "af/train/state_file.h"
#include "examples/cpp/digits/world.h"
#include "examples/cpp/gpt/model.h"
#include "examples/cpp/gpt/options.h"
#include "examples/cpp/gpt/sample.h"
#include "examples/cpp/gpt/text.h"

namespace gpt {
namespace {

// The mean over all bytes; all pieces have as many, so it is the mean over the rows as well.
at::Tensor loss_of(Model& model, const Batch& batch) {
  return at::cross_entropy_loss(model->forward(batch.tokens).flatten(0, 1), batch.next.flatten());
}

// The sum of the losses of this rank's share of the held-out pieces, and how many those are.
std::vector<double> test(Model& model, const Text& text, int rank, int world) {
  const at::NoGradGuard no_grad;
  const auto share = af::train::contiguous_share(text.held_out_pieces(), rank, world);
  const auto pieces = static_cast<double>(share.last - share.first);
  if (pieces == 0) return {0, 0};
  return {loss_of(model, text.held_out(share.first, share.last)).item<double>() * pieces, pieces};
}

// Where a fine-tuning begins: the model that another training has saved, without its optimizer.
void load_model(Model& model, const std::string& directory) {
  const auto newest = af::train::CheckpointDirectory(directory).find_newest();
  if (!newest) throw std::runtime_error("there is no checkpoint in " + directory);
  af::train::load_into(
      *model, af::train::read_state(newest->path / "state.pt").at("model").toGenericDict());
}

void run(const Options& options) {
  at::set_num_threads(options.threads);
  torch::manual_seed(options.seed);
  const at::Device device = digits::device_of_rank();
  const Text text(options.text, options.shape.context, device);
  Model model(options.shape);
  if (!options.from.empty()) load_model(model, options.from);
  model->to(device);

  af::train::Dealer dealer(text.pieces(), options.batch, options.seed);
  torch::optim::AdamW adam(
      model->parameters(),
      torch::optim::AdamWOptions(options.learning_rate).betas({0.9, 0.95}).weight_decay(0.1));
  af::train::LrSchedule schedule(
      adam, af::train::warmup_cosine({.warmup_steps = options.warmup,
                                      .total_steps = options.epochs * dealer.steps_of_epoch()}));
  at::Tensor sums = at::zeros({2}, at::kDouble);  // of this epoch: losses, pieces

  // What is reported goes into the run's journal, and to MLflow if MLFLOW_TRACKING_URI is set.
  af::train::Session session = af::train::Session::from_environment();
  af::train::Callbacks callbacks;
  callbacks.add(af::train::journal_logger(session));
  callbacks.add(af::train::mlflow_logger_from_environment());
  af::train::BackgroundSaver saver(
      af::train::CheckpointDirectory(options.checkpoints),
      [&](const af::train::Checkpoint& saved, double seconds) {
        callbacks.checkpoint({saved.path.string(), saved.step, seconds});
      });

  // Behind all that takes time: the ranks that train already wait for one that comes.
  af::World world = digits::join(device);
  const auto first = [&] { return world.view().rank == 0; };
  af::train::DataParallelOptions parallel;
  parallel.callbacks = &callbacks;
  af::train::DataParallel replicas(*model, world, parallel);
  replicas.keep("optimizer", adam);
  replicas.keep("data", dealer);
  replicas.keep("sums", sums);
  if (!options.checkpoints.empty()) replicas.save_with(saver);
  const auto found = replicas.resume();
  replicas.begin();
  if (first()) {
    if (found) printf("resumed from %s\n", found->path.c_str());
    printf("%ld parameters, %ld pieces of %ld bytes, %ld steps of %ld an epoch, world %d\n",
           model->parameter_count(), text.pieces(), options.shape.context, dealer.steps_of_epoch(),
           options.batch, world.view().world_size);
    printf("perplexity by the bytes' frequencies: %.2f\n", text.unigram_perplexity());
  }

  for (int64_t epoch = dealer.epoch(); epoch < options.epochs; ++epoch) {
    while (const auto rows = replicas.next(epoch)) {
      replicas.zero_grad();
      double loss = 0;
      if (!rows->empty()) {  // the last batch of an epoch may leave nothing for some ranks
        const at::Tensor mean = loss_of(model, text.batch(*rows, epoch));
        mean.backward();
        loss = mean.item<double>();
      }
      const auto step = replicas.step(static_cast<int64_t>(rows->size()), loss, [&] {
        schedule.set(replicas.steps());
        af::train::clip_gradients(adam, 1.0);
        adam.step();
      });
      const auto pieces = static_cast<double>(step.samples);
      sums += at::tensor({step.loss * pieces, pieces}, at::kDouble);
    }
    const auto tested =
        replicas.sum([&](int rank, int size) { return test(model, text, rank, size); });
    const double loss = sums[0].item<double>() / sums[1].item<double>();
    const double held_out = tested[0] / tested[1];  // exact: every held-out piece counted once
    sums.zero_();
    if (first())
      printf("epoch %2ld  loss %.4f  held-out loss %.4f  perplexity %.2f  lr %.1e  world %d\n",
             epoch, loss, held_out, std::exp(held_out), schedule.lr(), world.view().world_size);
    callbacks.report(
        {replicas.steps(),
         epoch,
         {{"loss", loss}, {"held_out_loss", held_out}, {"perplexity", std::exp(held_out)}}});
    replicas.checkpoint();
  }
  if (first())
    printf("a sample:\n%s\n", sample(model, options.prompt, 200, 0.5, options.seed).c_str());
  replicas.finish();
  if (first() && !options.checkpoints.empty())
    printf("checkpoint %s\n", saver.directory().path_of(replicas.steps()).c_str());
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);  // whole lines at once, also into a pipe
  try {
    gpt::run(gpt::parse_options(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    fprintf(stderr, "gpt: %s\n", error.what());
    return 1;
  }
}
