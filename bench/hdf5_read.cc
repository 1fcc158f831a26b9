// SPDX-License-Identifier: Apache-2.0
// How fast rows come out of an HDF5 file: af's loader against H5Dread, and as one side of
// bench/hdf5_peer.py. 200,000 rows of 64 float32, of ten bits of precision, as detectors give them:
// gzip (chunks of 1024 rows, shuffle, level 4) and contiguous. Files are in the page cache.
//
//   hdf5_read make DIRECTORY                 writes DIRECTORY/rows.h5
//   hdf5_read pairs DIRECTORY                one thread on one core, against H5Dread in order
//   hdf5_read serve DIRECTORY NAME THREADS   runs for as many seconds as a line of stdin says, and
//                                            answers with the rows per second
//
// In pairs, A and B alternate in blocks of 0.2 s; a ratio is that of two neighbours.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fmt/core.h>
#include <hdf5.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "af/train/data_loader.h"
#include "af/train/dealer.h"
#include "af/train/hdf5_blocks.h"
#include "af/train/window_dealer.h"

namespace {

constexpr int64_t kRows = 200000;
constexpr int64_t kColumns = 64;
constexpr int64_t kChunkRows = 1024;
constexpr int64_t kBatch = 1024;
constexpr double kBlockSeconds = 0.2;
constexpr int kPairs = 20;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string file_in(const std::string& directory) {
  return directory + "/rows.h5";
}

void require(bool good, const char* what) {
  if (good) return;
  fmt::print(stderr, "hdf5_read: {} failed\n", what);
  std::exit(1);
}

void make(const std::string& directory) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(kRows * kColumns);
  for (float& value : values) {
    value = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits &= 0xffffe000U;  // ten bits of the mantissa
    std::memcpy(&value, &bits, sizeof bits);
  }
  const hid_t file = H5Fcreate(file_in(directory).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  require(file >= 0, "H5Fcreate");
  const hsize_t shape[] = {kRows, kColumns};
  const hsize_t chunk[] = {kChunkRows, kColumns};
  const hid_t space = H5Screate_simple(2, shape, nullptr);
  for (const bool gzip : {false, true}) {
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    if (gzip) {
      H5Pset_chunk(properties, 2, chunk);
      H5Pset_shuffle(properties);
      H5Pset_deflate(properties, 4);
    }
    const hid_t dataset = H5Dcreate2(file, gzip ? "gzip" : "contiguous", H5T_IEEE_F32LE, space,
                                     H5P_DEFAULT, properties, H5P_DEFAULT);
    require(H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0,
            "H5Dwrite");
    H5Dclose(dataset);
    H5Pclose(properties);
  }
  H5Sclose(space);
  H5Fclose(file);
}

// An epoch by H5Dread, chunk after chunk into the same memory.
class InOrder {
 public:
  InOrder(const std::string& directory, const char* name)
      : file_(H5Fopen(file_in(directory).c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)),
        dataset_(H5Dopen2(file_, name, H5P_DEFAULT)),
        memory_(kChunkRows * kColumns) {
    require(dataset_ >= 0, "H5Dopen");
  }
  ~InOrder() {
    H5Dclose(dataset_);
    H5Fclose(file_);
  }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

  int64_t epoch() {
    const hid_t space = H5Dget_space(dataset_);
    for (int64_t first = 0; first < kRows; first += kChunkRows) {
      const hsize_t start[] = {static_cast<hsize_t>(first), 0};
      const hsize_t size[] = {static_cast<hsize_t>(std::min(kChunkRows, kRows - first)), kColumns};
      const hid_t memory = H5Screate_simple(2, size, nullptr);
      H5Sselect_hyperslab(space, H5S_SELECT_SET, start, nullptr, size, nullptr);
      require(H5Dread(dataset_, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, memory_.data()) >= 0,
              "H5Dread");
      H5Sclose(memory);
    }
    H5Sclose(space);
    return kRows;
  }

 private:
  hid_t file_;
  hid_t dataset_;
  std::vector<float> memory_;
};

// An epoch by the loader: gzip by windows of 8 chunks, contiguous in a full shuffle.
class Shuffled {
 public:
  Shuffled(const std::string& directory, const std::string& name, int threads)
      : reader_(std::make_shared<af::train::Hdf5Blocks>(
            std::vector<std::string>{file_in(directory)},
            std::vector<af::train::Hdf5Column>{{.dataset = name, .name = "x"}})) {
    if (name == "gzip")
      order_ = std::make_unique<af::train::WindowDealer>(reader_->block_rows(), kBatch, 1);
    else
      order_ = std::make_unique<af::train::Dealer>(kRows, kBatch, 1);
    // Less than the data: what is decompressed does not stay for the next epoch.
    loader_ = std::make_unique<af::train::DataLoader>(
        reader_, *order_,
        af::train::LoaderOptions{.threads = threads, .memory_bytes = std::size_t{16} << 20});
  }

  int64_t epoch() {
    int64_t rows = 0;
    while (const auto batch = loader_->next(epoch_)) rows += batch->rows();
    ++epoch_;
    require(rows == kRows, "an epoch of all rows");
    return rows;
  }

 private:
  std::shared_ptr<af::train::Hdf5Blocks> reader_;
  std::unique_ptr<af::train::DataOrder> order_;
  std::unique_ptr<af::train::DataLoader> loader_;
  int64_t epoch_ = 0;
};

double rows_per_second(const std::function<int64_t()>& epoch, double seconds) {
  const auto start = Clock::now();
  int64_t rows = 0;
  do rows += epoch();
  while (seconds_since(start) < seconds);
  return static_cast<double>(rows) / seconds_since(start);
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const auto high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

void compare(const std::string& label, const std::function<int64_t()>& ours,
             const std::function<int64_t()>& theirs) {
  std::vector<double> own, peer, ratios;
  ours();
  theirs();
  for (int pair = 0; pair < kPairs; ++pair) {
    double a = 0;
    double b = 0;
    if (pair % 2 == 0) a = rows_per_second(ours, kBlockSeconds);
    b = rows_per_second(theirs, kBlockSeconds);
    if (pair % 2 != 0) a = rows_per_second(ours, kBlockSeconds);
    own.push_back(a);
    peer.push_back(b);
    ratios.push_back(a / b);
  }
  const nlohmann::json line = {
      {"name", label},
      {"value", quantile(own, 0.5)},
      {"unit", "rows/s"},
      {"peer", "H5Dread in order"},
      {"peer_value", quantile(peer, 0.5)},
      {"ratio", quantile(ratios, 0.5)},
      {"spread", fmt::format("quartiles {:.2f} to {:.2f} over {} pairs", quantile(ratios, 0.25),
                             quantile(ratios, 0.75), kPairs)}};
  fmt::print("{}\n", line.dump());
}

void pairs(const std::string& directory) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(sched_getcpu(), &core);
  sched_setaffinity(0, sizeof core, &core);
  for (const char* name : {"gzip", "contiguous"}) {
    InOrder in_order(directory, name);
    Shuffled shuffled(directory, name, 0);
    compare(
        std::string("HDF5 ") + name +
            (std::string(name) == "gzip" ? ", window shuffle, 1 thread"
                                         : ", full shuffle, 1 thread"),
        [&] { return shuffled.epoch(); }, [&] { return in_order.epoch(); });
  }
}

void serve(const std::string& directory, const std::string& name, int threads) {
  Shuffled shuffled(directory, name, threads);
  shuffled.epoch();
  double seconds = 0;
  while (std::cin >> seconds)
    std::cout << rows_per_second([&] { return shuffled.epoch(); }, seconds) << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::string what = argc > 2 ? argv[1] : "";
  try {
    if (what == "make")
      make(argv[2]);
    else if (what == "pairs")
      pairs(argv[2]);
    else if (what == "serve" && argc == 5)
      serve(argv[2], argv[3], std::stoi(argv[4]));
    else
      throw std::runtime_error("usage: hdf5_read make|pairs DIR, or serve DIR NAME THREADS");
  } catch (const std::exception& error) {
    fmt::print(stderr, "hdf5_read: {}\n", error.what());
    return 1;
  }
  return 0;
}
