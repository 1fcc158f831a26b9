// SPDX-License-Identifier: Apache-2.0
#include "af/train/hdf5_dataset.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <numeric>

#include "common/error.h"
#include "tests/unit/temporary_directory.h"
#include "train/data/hdf5_handle.h"

namespace af::train {
namespace {

namespace fs = std::filesystem;

// The digits, in the repository's root: tests run from there.
const char kDigits[] = "examples/data/digits.h5";

class Hdf5Test : public testing::Test {
 protected:
  void SetUp() override {
    path_ = temporary_ / "data.h5";
    file_ = Hdf5Handle(H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
    ASSERT_TRUE(file_);
  }
  // A dataset of `file_type` with the shape, from `values` in `memory_type`; chunk 0: contiguous.
  void put(const char* name, hid_t file_type, std::vector<hsize_t> shape, hid_t memory_type,
           const void* values, hsize_t chunk_rows = 0, bool gzip = false) {
    const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (chunk_rows > 0) {
      std::vector<hsize_t> chunk = shape;
      chunk[0] = chunk_rows;
      H5Pset_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data());
      if (gzip) H5Pset_deflate(properties.get(), 4);
    }
    const Hdf5Handle space(
        shape.empty() ? H5Screate(H5S_SCALAR)
                      : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
        H5Sclose);
    const Hdf5Handle dataset(H5Dcreate2(file_.get(), name, file_type, space.get(), H5P_DEFAULT,
                                        properties.get(), H5P_DEFAULT),
                             H5Dclose);
    ASSERT_TRUE(dataset);
    if (values != nullptr) {
      ASSERT_GE(H5Dwrite(dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    }
    H5Fflush(file_.get(), H5F_SCOPE_LOCAL);
  }
  Hdf5Dataset open(const std::string& name) { return Hdf5Dataset(path_, name); }
  std::string error_of(const std::string& name) {
    try {
      open(name);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  TemporaryDirectory temporary_;
  fs::path path_;
  Hdf5Handle file_;
};

TEST_F(Hdf5Test, TheDigitsAreRead) {
  const Hdf5Dataset images(kDigits, "train/images");
  EXPECT_EQ(images.rows(), 1437);
  EXPECT_EQ(images.row_shape(), std::vector<int64_t>{64});
  EXPECT_EQ(images.type(), at::kByte);
  EXPECT_EQ(images.block_rows(), 256);
  EXPECT_EQ(images.blocks(), 6);
  EXPECT_EQ(images.read_all().max().item<int>(), 16);
  const at::Tensor labels = Hdf5Dataset(kDigits, "test/labels").read_all();
  EXPECT_EQ(labels.sizes(), at::IntArrayRef({360}));
  EXPECT_EQ(labels.max().item<int>(), 9);
}

TEST_F(Hdf5Test, BlocksAndRangesAreTheRowsInOrder) {
  std::vector<float> values(10 * 2 * 3);
  std::iota(values.begin(), values.end(), 0.0F);
  put("contiguous", H5T_IEEE_F32LE, {10, 2, 3}, H5T_NATIVE_FLOAT, values.data());
  put("chunked", H5T_IEEE_F32LE, {10, 2, 3}, H5T_NATIVE_FLOAT, values.data(), 4, true);
  put("big_endian", H5T_IEEE_F32BE, {10, 2, 3}, H5T_NATIVE_FLOAT, values.data(), 4);
  const at::Tensor expected = at::arange(60, at::kFloat).view({10, 2, 3});
  for (const char* name : {"contiguous", "chunked", "big_endian"}) {
    const Hdf5Dataset dataset = open(name);
    EXPECT_TRUE(dataset.read_all().equal(expected)) << name;
    EXPECT_TRUE(dataset.read(3, 5).equal(expected.narrow(0, 3, 5))) << name;
    EXPECT_EQ(dataset.read(10, 0).size(0), 0) << name;
    std::vector<at::Tensor> blocks;
    for (int64_t block = 0; block < dataset.blocks(); ++block)
      blocks.push_back(dataset.read_block(block));
    EXPECT_TRUE(at::cat(blocks).equal(expected)) << name;
  }
  EXPECT_EQ(open("chunked").blocks(), 3);
  EXPECT_EQ(open("chunked").read_block(2).size(0), 2);
}

TEST_F(Hdf5Test, EveryNumberTypeKeepsItsValues) {
  struct Row {
    const char* name;
    hid_t file_type;
    at::ScalarType expected;
    double most;
  };
  const Row rows[] = {
      {"i8", H5T_STD_I8LE, at::kChar, 127},
      {"u8", H5T_STD_U8LE, at::kByte, 255},
      {"i16", H5T_STD_I16BE, at::kShort, 32767},
      {"u16", H5T_STD_U16LE, at::kInt, 65535},
      {"i32", H5T_STD_I32LE, at::kInt, 2147483647},
      {"u32", H5T_STD_U32BE, at::kLong, 4294967295},
      {"i64", H5T_STD_I64LE, at::kLong, 4503599627370496},
      {"u64", H5T_STD_U64LE, at::kLong, 4503599627370496},
      {"f32", H5T_IEEE_F32LE, at::kFloat, 16777216},
      {"f64", H5T_IEEE_F64BE, at::kDouble, 1e300},
  };
  for (const Row& row : rows) {
    const double values[] = {0, row.most};
    put(row.name, row.file_type, {2}, H5T_NATIVE_DOUBLE, values);
    const Hdf5Dataset dataset = open(row.name);
    EXPECT_EQ(dataset.type(), row.expected) << row.name;
    EXPECT_EQ(dataset.read_all()[1].item<double>(), row.most) << row.name;
  }
}

TEST_F(Hdf5Test, H5pysBoolIsBool) {
  const Hdf5Handle boolean(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose);
  const int8_t no = 0;
  const int8_t yes = 1;
  H5Tenum_insert(boolean.get(), "FALSE", &no);
  H5Tenum_insert(boolean.get(), "TRUE", &yes);
  const int8_t values[] = {1, 0, 1};
  put("mask", boolean.get(), {3}, boolean.get(), values);
  const at::Tensor mask = open("mask").read_all();
  EXPECT_EQ(mask.scalar_type(), at::kBool);
  EXPECT_TRUE(mask.equal(at::tensor({1, 0, 1}).to(at::kBool)));
}

TEST_F(Hdf5Test, AnEmptyDatasetHasNoBlocks) {
  put("empty", H5T_IEEE_F32LE, {0, 5}, H5T_NATIVE_FLOAT, nullptr);
  const Hdf5Dataset empty = open("empty");
  EXPECT_EQ(empty.rows(), 0);
  EXPECT_EQ(empty.blocks(), 0);
  EXPECT_EQ(empty.read_all().sizes(), at::IntArrayRef({0, 5}));
}

TEST_F(Hdf5Test, ErrorsNameFileDatasetAndShape) {
  const float values[6] = {};
  put("matrix", H5T_IEEE_F32LE, {3, 2}, H5T_NATIVE_FLOAT, values);
  const Hdf5Dataset matrix = open("matrix");
  const auto expect = [&](auto call) {
    try {
      call();
      FAIL() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(path_.string()), std::string::npos) << text;
      EXPECT_NE(text.find("matrix"), std::string::npos) << text;
      EXPECT_NE(text.find("[3, 2]"), std::string::npos) << text;
    }
  };
  expect([&] { matrix.read(2, 2); });
  expect([&] { matrix.read(-1, 1); });
  expect([&] { matrix.read(0, -1); });
  expect([&] { matrix.read_block(1); });
  // An overflow of first + count must not pass for a small number.
  expect([&] { matrix.read(2, INT64_MAX); });
}

TEST_F(Hdf5Test, WhatCannotBecomeATensorIsRefused) {
  put("scalar", H5T_IEEE_F32LE, {}, H5T_NATIVE_FLOAT, nullptr);
  EXPECT_NE(error_of("scalar").find("single value"), std::string::npos);
  const Hdf5Handle text(H5Tcopy(H5T_C_S1), H5Tclose);
  put("names", text.get(), {4}, text.get(), nullptr);
  EXPECT_NE(error_of("names").find("holds text"), std::string::npos);
  const Hdf5Handle pair(H5Tcreate(H5T_COMPOUND, 8), H5Tclose);
  H5Tinsert(pair.get(), "pt", 0, H5T_NATIVE_FLOAT);
  H5Tinsert(pair.get(), "eta", 4, H5T_NATIVE_FLOAT);
  put("jets", pair.get(), {4}, pair.get(), nullptr);
  EXPECT_NE(error_of("jets").find("compound"), std::string::npos);
  EXPECT_NE(error_of("jets").find("[4]"), std::string::npos);
  EXPECT_NE(error_of("missing").find("missing cannot be opened"), std::string::npos);
}

TEST_F(Hdf5Test, AMissingFilterIsFoundAtOpening) {
  const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const hsize_t shape[] = {8};
  H5Pset_chunk(properties.get(), 1, shape);
  // 32123 is nobody's filter; optional, so that HDF5 writes the dataset without it.
  H5Pset_filter(properties.get(), 32123, H5Z_FLAG_OPTIONAL, 0, nullptr);
  const Hdf5Handle space(H5Screate_simple(1, shape, nullptr), H5Sclose);
  const Hdf5Handle dataset(H5Dcreate2(file_.get(), "odd", H5T_IEEE_F32LE, space.get(), H5P_DEFAULT,
                                      properties.get(), H5P_DEFAULT),
                           H5Dclose);
  ASSERT_TRUE(dataset);
  H5Fflush(file_.get(), H5F_SCOPE_LOCAL);
  EXPECT_NE(error_of("odd").find("32123"), std::string::npos) << error_of("odd");
}

TEST_F(Hdf5Test, BadFilesAreNamed) {
  const auto error = [](const fs::path& path) -> std::string {
    try {
      Hdf5Dataset(path, "x");
    } catch (const Error& failure) {
      return failure.what();
    }
    return "no error";
  };
  EXPECT_NE(error(temporary_ / "none.h5").find("none.h5: No such file"), std::string::npos);
  std::ofstream(temporary_ / "text.h5") << "not HDF5 at all";
  EXPECT_NE(error(temporary_ / "text.h5").find("not an HDF5 file"), std::string::npos);
  fs::copy_file(kDigits, temporary_ / "torn.h5");
  fs::resize_file(temporary_ / "torn.h5", 3000);
  EXPECT_NE(error(temporary_ / "torn.h5").find("torn.h5"), std::string::npos);
}

TEST_F(Hdf5Test, ADamagedChunkIsAnErrorAtItsRows) {
  const fs::path damaged = temporary_ / "damaged.h5";
  fs::copy_file(kDigits, damaged);
  haddr_t address = 0;
  hsize_t size = 0;
  {
    const Hdf5Handle file(H5Fopen(kDigits, H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
    const Hdf5Handle images(H5Dopen2(file.get(), "train/images", H5P_DEFAULT), H5Dclose);
    const hsize_t first[] = {256, 0};
    ASSERT_GE(H5Dget_chunk_info_by_coord(images.get(), first, nullptr, &address, &size), 0);
  }
  std::fstream bytes(damaged, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(static_cast<std::streamoff>(address));
  bytes << std::string(static_cast<size_t>(size), '\x55');
  bytes.close();
  const Hdf5Dataset images(damaged, "train/images");
  EXPECT_EQ(images.read_block(0).size(0), 256);
  EXPECT_THROW(images.read_block(1), Error);
}

TEST_F(Hdf5Test, AReadOnlyDirectoryIsEnough) {
  // HDF5's own file lock would want to write there on some file systems; nothing is written.
  const auto before = fs::last_write_time(kDigits);
  Hdf5Dataset(kDigits, "train/images").read_all();
  EXPECT_EQ(fs::last_write_time(kDigits), before);
}

TEST_F(Hdf5Test, AReadAfterForkIsRefused) {
  const Hdf5Dataset images(kDigits, "train/images");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      images.read(0, 1);
    } catch (const Error& error) {
      ::_exit(std::string(error.what()).find("fork") != std::string::npos ? 7 : 8);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace af::train
