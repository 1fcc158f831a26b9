// SPDX-License-Identifier: Apache-2.0
#include "examples/cpp/gpt/sample.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <vector>

#include "examples/cpp/gpt/text.h"

namespace gpt {

std::string sample(Model& model, const std::string& prompt, int64_t length, double temperature,
                   uint64_t seed) {
  const at::NoGradGuard no_grad;
  const at::Device device = model->parameters().front().device();
  at::Generator generator = at::detail::createCPUGenerator(seed);
  std::string text = prompt;
  for (int64_t i = 0; i < length; ++i) {
    const auto begin = text.size() - std::min<std::size_t>(
                                         text.size(), static_cast<std::size_t>(model->context()));
    const at::Tensor seen = to_tokens(text.substr(begin)).to(device).unsqueeze(0);
    const at::Tensor last = model->forward(seen)[0][-1].cpu();
    const auto next = at::multinomial((last / temperature).softmax(0), 1, false, generator);
    text += static_cast<char>(next.item<int64_t>());
    if (text.size() > prompt.size() + 1 && text.ends_with("\n\n")) break;
  }
  return text;
}

}  // namespace gpt
