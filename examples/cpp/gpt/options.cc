// SPDX-License-Identifier: Apache-2.0
#include "examples/cpp/gpt/options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace gpt {

Options parse_options(int argc, char** argv) {
  Options options;
  if (const char* directory = std::getenv("AF_CHECKPOINT_DIR")) options.checkpoints = directory;
  CLI::App app(
      "Trains a small language model on a text, or trains it further on another, data-parallel "
      "over "
      "the ranks of a world");
  const auto positive = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  app.add_option("--text", options.text, "a file to learn from")->capture_default_str();
  app.add_option("--checkpoints", options.checkpoints,
                 "directory for checkpoints; resumes from the newest (default: AF_CHECKPOINT_DIR)");
  app.add_option("--from", options.from,
                 "fine-tune: begin with the model of the newest checkpoint in this directory");
  app.add_option("--prompt", options.prompt,
                 "what the sample at the end goes on from; \\n is a line's end")
      ->capture_default_str();
  positive("--epochs", options.epochs, "times through the text");
  positive("--batch", options.batch, "pieces of text in a step, over all ranks");
  positive("--lr", options.learning_rate, "the highest learning rate");
  positive("--warmup", options.warmup, "steps until it is reached; it falls from there to nothing");
  positive("--context", options.shape.context, "bytes that the model sees at once");
  positive("--width", options.shape.width, "of a layer; a multiple of --heads");
  positive("--heads", options.shape.heads, "of attention");
  positive("--layers", options.shape.layers, "");
  positive("--threads", options.threads, "CPU threads of a rank");
  app.add_option("--seed", options.seed)->capture_default_str();
  try {
    app.parse(argc, argv);
    if (options.shape.width % options.shape.heads != 0)
      throw CLI::ValidationError("--width", "has to be a multiple of --heads");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  for (std::size_t at; (at = options.prompt.find("\\n")) != std::string::npos;)
    options.prompt.replace(at, 2, "\n");
  return options;
}

}  // namespace gpt
