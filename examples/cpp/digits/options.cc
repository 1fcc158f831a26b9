// SPDX-License-Identifier: Apache-2.0
#include "examples/cpp/digits/options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace digits {

Options parse_options(int argc, char** argv) {
  Options options;
  if (const char* directory = std::getenv("AF_CHECKPOINT_DIR")) options.checkpoints = directory;
  CLI::App app(
      "Trains a small network on handwritten digits, data-parallel over the ranks of a world");
  app.add_option("--data", options.data, "HDF5 file with {train,test}/{images,labels}")
      ->capture_default_str();
  app.add_option("--checkpoints", options.checkpoints,
                 "directory for checkpoints; resumes from the newest (default: AF_CHECKPOINT_DIR)");
  app.add_option("--epochs", options.epochs)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", options.batch, "images in a step, over all ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--keep", options.keep, "checkpoints that stay")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", options.threads, "CPU threads of a rank; the model is small")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  int64_t work = 0;
  app.add_option("--work-ms", work,
                 "as if a rank alone needed so long for a batch: to have something to watch")
      ->check(CLI::NonNegativeNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  options.work = std::chrono::milliseconds(work);
  return options;
}

}  // namespace digits
