// SPDX-License-Identifier: Apache-2.0
// What is reported (Callbacks::report) goes into files, and to an MLflow server (mlflow_logger.h).
//
//   callbacks.add(af::train::tensorboard_logger("runs/7"));
//   callbacks.add(af::train::csv_logger("metrics.csv"));
//
// Rank 0 writes, whichever process that is when the world changes; each logger on a thread of its
// own, so that no step waits for a disk. A failure is said once, in a line, and tried again: it
// never reaches the training. At the end, also by an exception, a logger waits up to 10 s for what
// it has not written; a process that is killed loses what its threads were about to write. A
// training that goes on appends. Steps that it repeats stand there again, with a later time.
//
// docs/metrics.md has the formats.
#pragma once

#include <filesystem>
#include <memory>

#include "af/export.h"
#include "af/train/callback.h"
#include "af/train/session.h"

namespace af::train {

// DIRECTORY/events.out.tfevents.TIME.HOST.PID.N, a new file each time that a process begins: what a
// killed one has left torn is never appended to. A directory is a run to TensorBoard.
AF_PUBLIC std::shared_ptr<Callback> tensorboard_logger(const std::filesystem::path& directory);

// A table: time, step, epoch, and a column for each metric. A metric that comes later gets a column
// at the end, for which the file is written anew.
AF_PUBLIC std::shared_ptr<Callback> csv_logger(const std::filesystem::path& file);

// {"t": …, "step": …, "epoch": …, "metrics": {…}} a line. Numbers that are not finite are null.
AF_PUBLIC std::shared_ptr<Callback> json_lines_logger(const std::filesystem::path& file);

// The run's journal, for reports and checkpoints. `session` must outlive it.
AF_PUBLIC std::shared_ptr<Callback> journal_logger(Session& session);

}  // namespace af::train
