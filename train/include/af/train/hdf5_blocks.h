// SPDX-License-Identifier: Apache-2.0
// Datasets of HDF5 files as one table: the first axis counts the rows (samples), and a row is what
// all datasets have there. Several files follow each other.
//
//   af::train::Hdf5Blocks events({"run/*.h5"}, {{.dataset = "jets", .fields = {"pt", "eta", "m"}},
//                                               {.dataset = "tracks", .as =
//                                               Hdf5Column::As::tensors},
//                                               {.dataset = "label"}});
//   at::Tensor jets = events.read_block(0)["jets"];          // float [rows, 3]
//   at::Tensor valid = events.read_block(0)["tracks.valid"];  // bool [rows, 40]
//
// How it is read: contiguous native numbers are mapped (and are in_memory(): rows from anywhere).
// Chunks with gzip, shuffle and fletcher32, or none, come as they lie in the file through
// H5Dread_chunk, and are decompressed, checked and converted by the threads that ask for them,
// outside HDF5's lock. All else (other filters, virtual, compact and external datasets, numbers of
// odd sizes) goes through H5Dread, with a cache that holds all chunks of a block.
//
// Types are those of Hdf5Dataset (hdf5_dataset.h): numbers of either byte order and h5py's bool;
// half comes as float, uint16 and uint32 as int32 and int64, uint64 as int64. Arrays within an
// element are further axes. Text, references, rows of varying length and nested compounds are
// refused in words.
//
// Processes and threads: make it after fork(), in each process for itself; a read in a child
// throws. Every file is opened once and stays open. Any thread may read. Files that change while
// they are mapped end the process with SIGBUS: map = false for those.
//
// Errors: af::Error with file, dataset, and shape or rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "af/export.h"
#include "af/train/block_reader.h"

namespace af::train {

struct Hdf5Column {
  std::string dataset;
  // Of a compound type: these fields in this order; all of them, if empty.
  std::vector<std::string> fields;
  enum class As {
    matrix,  // one tensor with the fields as its last axis: [rows, …, fields]. Fields of one type
             // keep it, others become float (double, where one of them is)
    tensors,  // a tensor "NAME.FIELD" for each
  } as = As::matrix;
  std::string name;  // in the batch; the dataset's, if empty
};

struct Hdf5Options {
  // The rows of a block; 0: whole chunks of all datasets, but 256 KiB at least, or 1 MiB where
  // nothing is in chunks.
  int64_t block_rows = 0;
  bool map = true;
};

class AF_PUBLIC Hdf5Blocks : public BlockReader {
 public:
  // Files or patterns of the shell. What a pattern names is sorted by name. All files have the same
  // datasets, with the same types and shapes but for the rows. Everything is checked here, filters
  // included, so that a training does not fail on it hours later.
  Hdf5Blocks(const std::vector<std::string>& files, std::vector<Hdf5Column> columns,
             Hdf5Options options = {});
  ~Hdf5Blocks() override;

  std::vector<int64_t> block_rows() const override;
  Batch read_block(int64_t block) const override;
  bool in_memory() const override;
  std::string describe_row(int64_t row) const override;

  int64_t rows() const;
  // How each dataset of the first file is read, for people: "jets: chunks of 1024 rows (shuffle,
  // gzip), decompressed here".
  std::string description() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
