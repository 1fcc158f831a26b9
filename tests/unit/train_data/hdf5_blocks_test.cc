// SPDX-License-Identifier: Apache-2.0
#include "af/train/hdf5_blocks.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <thread>

#include "af/train/hdf5_dataset.h"
#include "common/error.h"
#include "tests/unit/temporary_directory.h"
#include "tests/unit/train_data/hdf5_writer.h"

namespace af::train {
namespace {

const char kDigits[] = "examples/data/digits.h5";

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

#define EXPECT_IN(part, text) EXPECT_NE((text).find(part), std::string::npos) << (text)

class Hdf5BlocksTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (temporary_ / name).string(); }
  static at::Tensor all(const Hdf5Blocks& blocks, const std::string& name) {
    return read_rows(blocks, 0, blocks.rows())[name];
  }

  TemporaryDirectory temporary_;
};

TEST_F(Hdf5BlocksTest, EveryLayoutGivesTheRowsInOrder) {
  Hdf5Writer file(path("a.h5"));
  const std::vector<hsize_t> shape = {50, 6, 4};
  struct Case {
    const char* name;
    hid_t type;
    DatasetLayout layout;
    const char* way;
  };
  const Case cases[] = {
      {"contiguous", H5T_IEEE_F32LE, {}, "mapped"},
      {"contiguous_be", H5T_IEEE_F32BE, {}, "read by HDF5"},
      {"chunked", H5T_IEEE_F32LE, {.chunk = {8, 6, 4}}, "chunks of 8 rows, read directly"},
      {"gzip", H5T_IEEE_F32LE, {.chunk = {8, 6, 4}, .gzip = 4}, "(gzip), read directly"},
      {"h5py", H5T_IEEE_F32LE, {.chunk = {8, 6, 4}, .shuffle = true, .gzip = 4}, "(shuffle, gzip)"},
      {"all", H5T_IEEE_F32LE, {{8, 6, 4}, true, 4, true}, "(shuffle, gzip, fletcher32)"},
      {"gzip_be", H5T_IEEE_F32BE, {{8, 6, 4}, true, 4, false}, "read directly"},
      {"half_as_float", H5T_IEEE_F64LE, {{16, 6, 4}, true, 4, false}, "read directly"},
      {"across", H5T_IEEE_F32LE, {{7, 4, 3}, true, 4, false}, "chunks of 7 rows"},
      {"across_be", H5T_STD_I32BE, {{7, 6, 3}, true, 1, true}, "chunks of 7 rows"},
  };
  for (const Case& one : cases) file.put_counting(one.name, one.type, shape, one.layout);
  const at::Tensor expected = at::arange(50 * 24, at::kDouble).view({50, 6, 4});
  for (const Case& one : cases)
    for (const int64_t rows : {0, 8, 5, 50}) {
      const Hdf5Blocks blocks({path("a.h5")}, {{.dataset = one.name}}, {.block_rows = rows});
      EXPECT_EQ(blocks.rows(), 50);
      EXPECT_TRUE(all(blocks, one.name).to(at::kDouble).equal(expected)) << one.name << rows;
      EXPECT_IN(one.way, blocks.description());
      EXPECT_EQ(blocks.in_memory(), std::string(one.name) == "contiguous");
      const at::Tensor before = Hdf5Dataset(path("a.h5"), one.name).read_all();
      EXPECT_EQ(all(blocks, one.name).scalar_type(), before.scalar_type());
    }
}

TEST_F(Hdf5BlocksTest, EveryNumberIsWhatHdf5Makes) {
  Hdf5Writer file(path("a.h5"));
  const Hdf5Handle half(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(half.get(), 15, 10, 5, 0, 10);
  H5Tset_size(half.get(), 2);
  H5Tset_ebias(half.get(), 15);
  const Hdf5Handle bfloat(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(bfloat.get(), 15, 7, 8, 0, 7);
  H5Tset_size(bfloat.get(), 2);
  H5Tset_ebias(bfloat.get(), 127);
  const Hdf5Handle twelve(H5Tcopy(H5T_STD_U16LE), H5Tclose);
  H5Tset_precision(twelve.get(), 12);
  const std::pair<const char*, hid_t> types[] = {
      {"i8", H5T_STD_I8LE},      {"u8", H5T_STD_U8LE},       {"i16", H5T_STD_I16BE},
      {"u16", H5T_STD_U16LE},    {"u16be", H5T_STD_U16BE},   {"i32", H5T_STD_I32LE},
      {"u32", H5T_STD_U32BE},    {"i64", H5T_STD_I64BE},     {"u64", H5T_STD_U64LE},
      {"f32be", H5T_IEEE_F32BE}, {"f64", H5T_IEEE_F64LE},    {"f64be", H5T_IEEE_F64BE},
      {"half", half.get()},      {"bfloat16", bfloat.get()}, {"twelve_bits", twelve.get()}};
  for (const auto& [name, type] : types)
    for (const bool chunked : {false, true}) {
      const std::string dataset = std::string(name) + (chunked ? "_chunked" : "");
      file.put_counting(dataset, type, {120},
                        chunked ? DatasetLayout{{16}, true, 4, false} : DatasetLayout{});
      const Hdf5Blocks blocks({path("a.h5")}, {{.dataset = dataset}});
      const at::Tensor expected = Hdf5Dataset(path("a.h5"), dataset).read_all();
      EXPECT_TRUE(all(blocks, dataset).equal(expected)) << dataset;
      EXPECT_EQ(all(blocks, dataset)[119].item<double>(), 119) << dataset;
    }
}

// What h5py writes for a mask, and a compound type with an array and fields of several types.
class Jets : public Hdf5BlocksTest {
 protected:
  struct Track {
    double pt;
    float eta;
    int8_t valid;
    int16_t cells[3];
  };
  void SetUp() override {
    boolean_ = Hdf5Handle(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose);
    const int8_t no = 0;
    const int8_t yes = 1;
    H5Tenum_insert(boolean_.get(), "FALSE", &no);
    H5Tenum_insert(boolean_.get(), "TRUE", &yes);
    const hsize_t three = 3;
    const Hdf5Handle cells(H5Tarray_create2(H5T_NATIVE_INT16, 1, &three), H5Tclose);
    type_ = Hdf5Handle(H5Tcreate(H5T_COMPOUND, sizeof(Track)), H5Tclose);
    H5Tinsert(type_.get(), "pt", HOFFSET(Track, pt), H5T_NATIVE_DOUBLE);
    H5Tinsert(type_.get(), "eta", HOFFSET(Track, eta), H5T_NATIVE_FLOAT);
    H5Tinsert(type_.get(), "valid", HOFFSET(Track, valid), boolean_.get());
    H5Tinsert(type_.get(), "cells", HOFFSET(Track, cells), cells.get());
    for (int i = 0; i < 20 * 5; ++i)
      tracks_.push_back({i * 1.5, i * 0.5F, int8_t(i % 2), {int16_t(i), int16_t(-i), 7}});
    Hdf5Writer file(path("a.h5"));
    file.put("tracks", type_.get(), {20, 5}, type_.get(), tracks_.data(), {{6, 5}, true, 4, false});
    file.put("plain", type_.get(), {20, 5}, type_.get(), tracks_.data());
    file.put_counting("label", H5T_STD_U8LE, {20});
  }
  Hdf5Handle boolean_;
  Hdf5Handle type_;
  std::vector<Track> tracks_;
};

TEST_F(Jets, FieldsAsTensors) {
  for (const char* dataset : {"tracks", "plain"}) {
    const Hdf5Blocks blocks({path("a.h5")}, {{.dataset = dataset,
                                              .fields = {"valid", "cells", "pt"},
                                              .as = Hdf5Column::As::tensors,
                                              .name = "t"},
                                             {.dataset = "label"}});
    const Batch batch = read_rows(blocks, 0, 20);
    ASSERT_EQ(batch.columns().size(), 4U);
    EXPECT_EQ(batch["t.valid"].scalar_type(), at::kBool);
    EXPECT_EQ(batch["t.cells"].sizes(), at::IntArrayRef({20, 5, 3}));
    EXPECT_EQ(batch["t.pt"].scalar_type(), at::kDouble);
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(batch["t.valid"].view({-1})[i].item<bool>(), i % 2 == 1);
      EXPECT_EQ(batch["t.cells"].view({-1, 3})[i][1].item<int>(), -i);
      EXPECT_EQ(batch["t.pt"].view({-1})[i].item<double>(), i * 1.5);
    }
    EXPECT_EQ(batch["label"][19].item<int>(), 19);
  }
}

TEST_F(Jets, FieldsAsAMatrix) {
  const Hdf5Blocks some({path("a.h5")}, {{.dataset = "tracks", .fields = {"eta", "valid"}}});
  const at::Tensor two = all(some, "tracks");
  EXPECT_EQ(two.scalar_type(), at::kFloat);
  ASSERT_EQ(two.sizes(), at::IntArrayRef({20, 5, 2}));
  const Hdf5Blocks every({path("a.h5")}, {{.dataset = "tracks"}});
  const at::Tensor six = all(every, "tracks");
  EXPECT_EQ(six.scalar_type(), at::kDouble);
  ASSERT_EQ(six.sizes(), at::IntArrayRef({20, 5, 6}));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(two.view({-1, 2})[i][0].item<float>(), i * 0.5F);
    EXPECT_EQ(two.view({-1, 2})[i][1].item<float>(), i % 2);
    EXPECT_EQ(six.view({-1, 6})[i][0].item<double>(), i * 1.5);
    EXPECT_EQ(six.view({-1, 6})[i][5].item<double>(), 7);
  }
}

TEST_F(Jets, FieldsThatAreNotThereAreNamedWithThoseThatAre) {
  const auto error =
      error_of([&] { Hdf5Blocks({path("a.h5")}, {{.dataset = "tracks", .fields = {"phi"}}}); });
  EXPECT_IN("a.h5: dataset tracks of shape [20, 5] has no field phi: it has pt, eta, valid, cells",
            error);
  EXPECT_IN("no compound",
            error_of([&] { Hdf5Blocks({path("a.h5")}, {{.dataset = "label", .fields = {"x"}}}); }));
}

TEST_F(Hdf5BlocksTest, SeveralFilesFollowEachOther) {
  for (const auto& [name, rows] :
       std::vector<std::pair<std::string, hsize_t>>{{"r1.h5", 10}, {"r2.h5", 0}, {"r3.h5", 7}}) {
    Hdf5Writer file(path(name));
    file.put_counting("x", name == "r3.h5" ? H5T_IEEE_F32BE : H5T_IEEE_F32LE, {rows, 2},
                      rows > 0 ? DatasetLayout{{4, 2}, true, 4, false} : DatasetLayout{});
  }
  const Hdf5Blocks blocks({path("r[13].h5"), path("r2.h5")}, {{.dataset = "x"}}, {.block_rows = 4});
  EXPECT_EQ(blocks.block_rows(), (std::vector<int64_t>{4, 4, 2, 4, 3}));
  EXPECT_EQ(blocks.rows(), 17);
  EXPECT_TRUE(
      all(blocks, "x")
          .equal(at::cat({at::arange(20, at::kFloat), at::arange(14, at::kFloat)}).view({17, 2})));
  EXPECT_IN("row 6 of " + path("r3.h5"), blocks.describe_row(16));
  EXPECT_IN("no file fits", error_of([&] { Hdf5Blocks({path("x*.h5")}, {{.dataset = "x"}}); }));
  Hdf5Writer(path("r4.h5")).put_counting("x", H5T_IEEE_F32LE, {5, 3});
  const auto error = error_of([&] { Hdf5Blocks({path("r*.h5")}, {{.dataset = "x"}}); });
  EXPECT_IN("r4.h5: dataset x of shape [5, 3] gives other tensors than", error);
}

TEST_F(Hdf5BlocksTest, BlocksAreWholeChunksOfAllDatasets) {
  Hdf5Writer file(path("a.h5"));
  file.put_counting("wide", H5T_IEEE_F32LE, {12000, 16}, {{4000, 16}, false, 1, false});
  file.put_counting("narrow", H5T_STD_U8LE, {12000}, {{6000}, false, 1, false});
  file.put_counting("small", H5T_STD_U8LE, {12000}, {{10}, false, 1, false});
  const Hdf5Blocks both({path("a.h5")}, {{.dataset = "wide"}, {.dataset = "narrow"}});
  EXPECT_EQ(both.block_rows(), std::vector<int64_t>{12000});
  const Hdf5Blocks wide({path("a.h5")}, {{.dataset = "wide"}});
  EXPECT_EQ(wide.block_rows(), (std::vector<int64_t>{8000, 4000}));  // 256 KiB at least
  const Hdf5Blocks small({path("a.h5")}, {{.dataset = "small"}});
  EXPECT_EQ(small.block_rows(), std::vector<int64_t>{12000});
}

TEST_F(Hdf5BlocksTest, ChunksThatWereNeverWrittenHaveTheFillValue) {
  const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const hsize_t chunk = 4;
  const float fill = -7;
  H5Pset_chunk(properties.get(), 1, &chunk);
  H5Pset_deflate(properties.get(), 1);
  H5Pset_fill_value(properties.get(), H5T_NATIVE_FLOAT, &fill);
  Hdf5Writer(path("a.h5"))
      .put_with("x", H5T_IEEE_F32LE, {10}, H5T_NATIVE_FLOAT, nullptr, properties.get());
  const Hdf5Blocks blocks({path("a.h5")}, {{.dataset = "x"}});
  EXPECT_TRUE(all(blocks, "x").equal(at::full({10}, -7, at::kFloat)));
}

TEST_F(Hdf5BlocksTest, DatasetsOfOtherRowsAreRefused) {
  Hdf5Writer file(path("a.h5"));
  file.put_counting("x", H5T_IEEE_F32LE, {10, 2});
  file.put_counting("y", H5T_IEEE_F32LE, {9});
  const auto error = error_of([&] {
    Hdf5Blocks({path("a.h5")}, {{.dataset = "x"}, {.dataset = "y"}});
  });
  EXPECT_IN("y of shape [9] has other rows than", error);
  EXPECT_IN("[10, 2]", error);
  EXPECT_IN("two columns of the name x", error_of([&] {
              Hdf5Blocks({path("a.h5")}, {{.dataset = "x"}, {.dataset = "x"}});
            }));
}

TEST_F(Hdf5BlocksTest, WhatCannotBecomeATensorIsRefused) {
  Hdf5Writer file(path("a.h5"));
  const Hdf5Handle text(H5Tcopy(H5T_C_S1), H5Tclose);
  const Hdf5Handle varying(H5Tvlen_create(H5T_NATIVE_FLOAT), H5Tclose);
  const Hdf5Handle pair(H5Tcreate(H5T_COMPOUND, 12), H5Tclose);
  H5Tinsert(pair.get(), "hits", 0, text.get());
  H5Tinsert(pair.get(), "pt", 8, H5T_NATIVE_FLOAT);
  file.put("names", text.get(), {4}, text.get(), nullptr);
  file.put("hits", varying.get(), {4}, varying.get(), nullptr);
  file.put("pair", pair.get(), {4}, pair.get(), nullptr);
  file.put("one", H5T_IEEE_F32LE, {}, H5T_NATIVE_FLOAT, nullptr);
  const auto error = [&](const char* name) {
    return error_of([&] { Hdf5Blocks({path("a.h5")}, {{.dataset = name}}); });
  };
  EXPECT_IN("a.h5: dataset names of shape [4] holds text", error("names"));
  EXPECT_IN("rows of varying length", error("hits"));
  EXPECT_IN("field hits holds text", error("pair"));
  EXPECT_IN("single value", error("one"));
  EXPECT_IN("missing cannot be opened", error("missing"));
  const Hdf5Blocks only({path("a.h5")}, {{.dataset = "pair", .fields = {"pt"}}});
  EXPECT_EQ(all(only, "pair").sizes(), at::IntArrayRef({4, 1}));
}

TEST_F(Hdf5BlocksTest, AMissingFilterIsNamedWithItsPackage) {
  Hdf5Writer file(path("a.h5"));
  struct Filter {
    std::string name;
    H5Z_filter_t id;
    const char* from;
  };
  for (const auto& [name, id, from] :
       {Filter{"lzf", 32000, "hdf5-plugin-lzf"},
        Filter{"blosc", 32001, "hdf5-filter-plugin-blosc-serial"},
        Filter{"zstd", 32015, "hdf5plugin"}, Filter{"own", 32123, "unnamed"}}) {
    if (H5Zfilter_avail(id) > 0) continue;  // installed on this machine
    const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    const hsize_t chunk = 8;
    H5Pset_chunk(properties.get(), 1, &chunk);
    H5Pset_filter(properties.get(), id, H5Z_FLAG_OPTIONAL, 0, nullptr);
    file.put_with(name, H5T_IEEE_F32LE, {8}, H5T_NATIVE_FLOAT, nullptr, properties.get());
    const std::string error =
        error_of([&, dataset = name] { Hdf5Blocks({path("a.h5")}, {{.dataset = dataset}}); });
    EXPECT_IN("dataset " + name, error);
    EXPECT_IN("filter " + std::to_string(id), error);
    EXPECT_IN(from, error);
    EXPECT_IN("HDF5_PLUGIN_PATH", error);
  }
}

TEST_F(Hdf5BlocksTest, DamagedChunksAreErrorsAtTheirRows) {
  {
    Hdf5Writer file(path("a.h5"));
    file.put_counting("gzip", H5T_IEEE_F32LE, {16, 64}, {{4, 64}, true, 4, false});
    file.put_counting("checked", H5T_IEEE_F32LE, {16, 64}, {{4, 64}, false, -1, true});
  }
  for (const char* name : {"gzip", "checked"}) {
    haddr_t address = 0;
    hsize_t size = 0;
    {
      const Hdf5Handle file(H5Fopen(path("a.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
      const Hdf5Handle dataset(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
      const hsize_t second[] = {4, 0};
      ASSERT_GE(H5Dget_chunk_info_by_coord(dataset.get(), second, nullptr, &address, &size), 0);
    }
    std::fstream bytes(path("a.h5"), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(address + size / 2));
    bytes << "\x55\xaa\x55\xaa\x55\xaa";
    bytes.close();
    const Hdf5Blocks blocks({path("a.h5")}, {{.dataset = name}}, {.block_rows = 4});
    EXPECT_EQ(blocks.read_block(0).rows(), 4);
    const auto error = error_of([&] { blocks.read_block(1); });
    EXPECT_IN(path("a.h5") + ": dataset " + name, error);
    EXPECT_IN("rows 4 to 7 cannot be read", error);
  }
}

TEST_F(Hdf5BlocksTest, AFileThatIsCutOffIsNotMapped) {
  Hdf5Writer(path("a.h5")).put_counting("x", H5T_IEEE_F32LE, {100000});
  std::filesystem::resize_file(path("a.h5"), 200000);
  EXPECT_IN("a.h5", error_of([&] { Hdf5Blocks({path("a.h5")}, {{.dataset = "x"}}); }));
}

TEST_F(Hdf5BlocksTest, AMappedFileWithAUserBlockIsReadRight) {
  const Hdf5Handle properties(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_userblock(properties.get(), 512);
  {
    const Hdf5Handle file(
        H5Fcreate(path("a.h5").c_str(), H5F_ACC_TRUNC, properties.get(), H5P_DEFAULT), H5Fclose);
    const hsize_t rows = 1000;
    const Hdf5Handle space(H5Screate_simple(1, &rows, nullptr), H5Sclose);
    const Hdf5Handle dataset(H5Dcreate2(file.get(), "x", H5T_STD_I32LE, space.get(), H5P_DEFAULT,
                                        H5P_DEFAULT, H5P_DEFAULT),
                             H5Dclose);
    std::vector<int32_t> values(1000);
    std::iota(values.begin(), values.end(), 0);
    H5Dwrite(dataset.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }
  const Hdf5Blocks blocks({path("a.h5")}, {{.dataset = "x"}});
  EXPECT_TRUE(all(blocks, "x").equal(at::arange(1000, at::kInt)));
  EXPECT_TRUE(blocks.in_memory());
}

TEST_F(Hdf5BlocksTest, WhatIsMappedOutlivesTheReaderAndTheFileKeepsItsBytes) {
  Hdf5Writer(path("a.h5")).put_counting("x", H5T_IEEE_F32LE, {100});
  at::Tensor rows;
  {
    const Hdf5Blocks blocks({path("a.h5")}, {{.dataset = "x"}});
    rows = blocks.read_block(0)["x"];
  }
  EXPECT_EQ(rows[99].item<float>(), 99);
  rows[99] = 5;
  const Hdf5Blocks again({path("a.h5")}, {{.dataset = "x"}}, {.map = false});
  EXPECT_FALSE(again.in_memory());
  EXPECT_EQ(again.read_block(0)["x"][99].item<float>(), 99);
}

TEST_F(Hdf5BlocksTest, ThreadsReadSideBySide) {
  Hdf5Writer file(path("a.h5"));
  file.put_counting("x", H5T_IEEE_F32LE, {4000, 8}, {{100, 8}, true, 4, true});
  file.put_counting("y", H5T_STD_I16BE, {4000});
  const Hdf5Blocks blocks({path("a.h5")}, {{.dataset = "x"}, {.dataset = "y"}},
                          {.block_rows = 100});
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (int64_t block = thread; block < 40; block += 2) {
        const Batch batch = blocks.read_block(block);
        if (batch["x"][99][7].item<float>() == float(block * 800 + 799) &&
            batch["y"][0].item<int>() == block * 100)
          ++good;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 20 + 20 + 19 + 19);
}

TEST_F(Hdf5BlocksTest, AReadAfterForkIsRefused) {
  const Hdf5Blocks images({kDigits}, {{.dataset = "train/images"}});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string error = error_of([&] { images.read_block(0); });
    ::_exit(error.find("fork") != std::string::npos ? 7 : 8);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

// HDF5 looks at its variable once in a process: so each case runs this test in a process of its
// own.
TEST(Hdf5Locking, DISABLED_Child) {
  std::string text = "read";
  try {
    Hdf5Dataset(std::getenv("AF_TEST_FILE"), "x").read_all();
  } catch (const Error& error) {
    text = error.what();
  }
  std::ofstream(std::getenv("AF_TEST_ANSWER")) << text;
}

TEST_F(Hdf5BlocksTest, FilesAreReadWithoutLocksUnlessThePersonWantsThem) {
  Hdf5Writer writer(path("a.h5"));  // and keeps it open for writing, with HDF5's lock
  writer.put_counting("x", H5T_IEEE_F32LE, {4});
  const auto read_with = [&](const char* variable) {
    const std::string command = fmt::format(
        "{}AF_TEST_FILE={} AF_TEST_ANSWER={} /proc/{}/exe --gtest_also_run_disabled_tests "
        "--gtest_filter=Hdf5Locking.DISABLED_Child >/dev/null 2>&1",
        variable, path("a.h5"), path("answer"), ::getpid());
    EXPECT_EQ(std::system(command.c_str()), 0);
    std::ifstream in(path("answer"));
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(read_with("env -u HDF5_USE_FILE_LOCKING "), "read");
  const std::string refused = read_with("HDF5_USE_FILE_LOCKING=TRUE ");
  EXPECT_IN("a.h5", refused);
  EXPECT_IN("HDF5_USE_FILE_LOCKING is TRUE", refused);
  EXPECT_IN("HDF5_USE_FILE_LOCKING=FALSE", refused);
}

}  // namespace
}  // namespace af::train
