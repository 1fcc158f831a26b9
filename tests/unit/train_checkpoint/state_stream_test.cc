// SPDX-License-Identifier: Apache-2.0
// state.pt tensor by tensor: StateWriter and StateReader.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <functional>

#include "af/train/state_reader.h"
#include "af/train/state_writer.h"
#include "common/atomic_file.h"
#include "common/error.h"
#include "tests/unit/temporary_directory.h"

namespace af::train {
namespace {

namespace fs = std::filesystem;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class StateStream : public testing::Test {
 protected:
  // {"step", "model": {"weight", "bias"}} with and without its numbers.
  static State make(const std::function<at::Tensor(at::Tensor)>& of) {
    State model = make_state();
    model.insert("weight", of(at::arange(60, at::kFloat).view({12, 5})));
    model.insert("bias", of(at::arange(7, at::kLong)));
    model.insert("none", of(at::zeros({0, 3})));
    State state = make_state();
    state.insert("step", int64_t{12});
    state.insert("model", model);
    return state;
  }
  static State whole() {
    return make([](const at::Tensor& tensor) { return tensor; });
  }
  static State planned() {
    return make([](const at::Tensor& tensor) {
      return tensor_to_write(tensor.sizes(), tensor.scalar_type());
    });
  }
  bool python(const std::string& program) {
    std::ofstream(temporary_ / "script.py") << "import torch\n" << program;
    return ::system(("cd '" + temporary_.path().string() +
                     "' && ${AF_TEST_PYTHON:-/usr/bin/python3} script.py")
                        .c_str()) == 0;
  }

  TemporaryDirectory temporary_;
  fs::path path_ = temporary_ / "state.pt";
};

TEST_F(StateStream, InAnyOrderAndInPiecesItIsTheFileOfTheWholeState) {
  write_state(temporary_ / "whole.pt", whole());
  const at::Tensor weight = at::arange(60, at::kFloat);
  StateWriter writer(path_, planned());
  writer.write("model/weight", 33, weight.narrow(0, 33, 27));
  writer.write("model/bias", at::arange(7, at::kLong));
  writer.write("model/none", at::zeros({0, 3}));
  writer.write("model/weight", 0, weight.narrow(0, 0, 33));
  writer.finish();
  EXPECT_EQ(read_file(path_), read_file(temporary_ / "whole.pt"));
}

TEST_F(StateStream, TensorsAndRangesOfThemAreReadByName) {
  write_state(path_, whole());
  const StateReader reader(path_);
  ASSERT_EQ(reader.tensors().size(), 3U);
  EXPECT_EQ(reader.tensors()[0].name, "model/weight");
  EXPECT_EQ(reader.tensors()[0].sizes, (std::vector<int64_t>{12, 5}));
  EXPECT_EQ(reader.tensor("model/bias").type, at::kLong);
  EXPECT_FALSE(reader.contains("weight"));
  EXPECT_EQ(reader.state().at("step").toInt(), 12);
  const at::Tensor shape = reader.state().at("model").toGenericDict().at("weight").toTensor();
  EXPECT_TRUE(shape.is_meta());
  EXPECT_EQ(shape.sizes(), (at::IntArrayRef{12, 5}));

  EXPECT_TRUE(reader.read("model/bias").equal(at::arange(7, at::kLong)));
  EXPECT_EQ(reader.read("model/none").sizes(), (at::IntArrayRef{0, 3}));
  const at::Tensor transposed = at::zeros({5, 12}).t();  // not contiguous
  reader.read("model/weight", transposed);
  EXPECT_TRUE(transposed.equal(at::arange(60, at::kFloat).view({12, 5})));
  std::vector<float> part(9);
  reader.read("model/weight", 31, 9, part.data());
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], 31 + static_cast<float>(i));
}

TEST_F(StateStream, TheSameMemoryIsThereOnce) {
  State state = make_state();
  const at::Tensor tied = at::ones({1000});
  state.insert("in", tied);
  state.insert("out", tied);
  write_state(path_, state);
  EXPECT_LT(fs::file_size(path_), 6000U);
  EXPECT_TRUE(python(R"(
state = torch.load("state.pt")
assert state["in"].data_ptr() == state["out"].data_ptr() and state["in"].sum() == 1000
)"));
}

TEST_F(StateStream, PythonsTransposedAndPartialTensorsAreReadToo) {
  ASSERT_TRUE(python(R"(
x = torch.arange(12.).view(3, 4)
torch.save({"t": x.t(), "part": x[1:], "half": x.half(), "n": 1.5, "l": [1, x], 3: x}, "state.pt")
)"));
  const StateReader reader(path_);
  const at::Tensor x = at::arange(12, at::kFloat).view({3, 4});
  EXPECT_TRUE(reader.read("t").equal(x.t()));
  EXPECT_TRUE(reader.read("t").is_contiguous());
  EXPECT_TRUE(reader.read("part").equal(x.narrow(0, 1, 2)));
  EXPECT_TRUE(reader.read("half").equal(x.to(at::kHalf)));
  std::vector<float> range(3);
  reader.read("t", 2, 3, range.data());  // row-major: 8, 1, 5
  EXPECT_EQ(range, (std::vector<float>{8, 1, 5}));
  EXPECT_EQ(reader.tensors().size(), 3U);
}

TEST_F(StateStream, ErrorsNameTheTensor) {
  const at::Tensor weight = at::zeros({12, 5});
  {
    StateWriter writer(path_, planned());
    EXPECT_EQ(error_of([&] { writer.write("weight", weight); }),
              path_.string() + ": the state to be written has no tensor weight");
    EXPECT_EQ(
        error_of([&] {
          writer.write("model/weight", at::zeros({5, 12}));
        }),
        path_.string() + ": the tensor model/weight has the shape [5, 12] and was to have [12, 5]");
    EXPECT_EQ(error_of([&] {
                writer.write("model/weight", at::zeros({12, 5}, at::kDouble));
              }),
              path_.string() + ": the tensor model/weight is of type Double and was to be Float");
    EXPECT_EQ(error_of([&] { writer.write("model/weight", 58, at::zeros({3})); }),
              path_.string() + ": 3 elements at 58 of the tensor model/weight, which has 60");
    writer.write("model/weight", 0, at::zeros({59}));
    EXPECT_EQ(error_of([&] { writer.finish(); }),
              path_.string() + ": model/weight: 236 of its 240 bytes are written");
  }
  EXPECT_NE(error_of([&] { StateReader reader(path_); }).find(path_.string()), std::string::npos);

  write_state(path_, whole());
  const StateReader reader(path_);
  EXPECT_EQ(error_of([&] { reader.read("bias"); }), path_.string() + " has no tensor bias");
  EXPECT_NE(
      error_of([&] { reader.read("model/bias", at::zeros({7})); }).find("model/bias is a Long"),
      std::string::npos);
  EXPECT_EQ(error_of([&] { reader.read("model/bias", 5, 3, nullptr); }),
            path_.string() + ": elements 5 to 8 of model/bias, which has 7");
  fs::resize_file(path_, 500);  // while it is open
  EXPECT_NE(error_of([&] { reader.read("model/bias"); }).find("it ends in a tensor"),
            std::string::npos);

  State odd = make_state();
  odd.insert("a/b", at::ones({1}));
  State inner = make_state();
  inner.insert("b", at::ones({1}));
  odd.insert("a", inner);
  EXPECT_EQ(error_of([&] { write_state(path_, odd); }),
            "the state has two tensors that would be named a/b");
  State sparse = make_state();
  sparse.insert("s", at::ones({2, 2}).to_sparse());
  EXPECT_NE(error_of([&] { write_state(path_, sparse); }).find("tensor s is of type"),
            std::string::npos);
}

}  // namespace
}  // namespace af::train
