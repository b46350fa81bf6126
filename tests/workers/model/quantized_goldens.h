// What transformers computes from the models of tests/golden/quantized/models: tensors of their goldens.safetensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::model {

template <class Elem>
std::vector<Elem> ReadGolden(const std::string& dir, absl::string_view name) {
  const auto model_dir = ModelDir::Open(dir);
  const auto file = checkpoint::WeightsFile::OpenSafetensors(*model_dir, "goldens.safetensors");
  for (const auto& [tensor, entry] : (*file)->tensors()) {
    if (tensor != name) continue;
    std::vector<Elem> values(static_cast<size_t>(entry.bytes) / sizeof(Elem));
    EXPECT_TRUE((*file)->Read(entry.begin, entry.bytes, values.data()).ok());
    return values;
  }
  ADD_FAILURE() << name;
  return {};
}

}  // namespace switchyard::model
