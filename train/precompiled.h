// SPDX-License-Identifier: Apache-2.0
// What is compiled once and put before every file that uses libtorch: its headers cost 10 s and
// more a file. Not a reason to leave out an #include: each file compiles without this one.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
