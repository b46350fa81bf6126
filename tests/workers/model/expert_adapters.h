// Adapters of experts for tests of merging: folders as PEFT writes them, changed or made up, and what merged weights
// have to be.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/model_dir.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/adapters/lora_adapter.h"
#include "workers/checkpoint/tensors/weights_file.h"
#include "workers/model/config/config.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/tensor.h"

namespace switchyard::model {

using WrittenTensors = std::map<std::string, checkpoint::WrittenTensor>;

inline std::string ReadFileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The tensors of a folder's adapter_model.safetensors.
inline WrittenTensors AdapterTensors(const std::string& folder) {
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(folder);
  SY_CHECK_OK(dir.status());
  const auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, "adapter_model.safetensors");
  SY_CHECK_OK(file.status());
  WrittenTensors tensors;
  for (const auto& [name, entry] : (*file)->tensors()) {
    checkpoint::WrittenTensor tensor = {entry.dtype, entry.shape, std::string(static_cast<size_t>(entry.bytes), '\0')};
    SY_CHECK_OK((*file)->Read(entry.begin, entry.bytes, tensor.bytes.data()));
    tensors[name] = std::move(tensor);
  }
  return tensors;
}

// Writes an adapter with r 2 and scale 2 of these matrices of all experts, "gate_up_proj" or "down_proj".
inline void WriteExpertAdapter(const ModelConfig& config, const std::vector<std::string>& targets, const TempDir& dir) {
  constexpr int64_t kRank = 2;
  std::mt19937 generator(7);
  std::normal_distribution<float> normal(0, 0.1F);
  const auto random = [&](int64_t rows, int64_t columns) {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (float& value : values) value = normal(generator);
    return checkpoint::FloatTensor("F32", {rows, columns}, values);
  };
  WrittenTensors tensors;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    for (const std::string& target : targets) {
      const bool gate_up = target == "gate_up_proj";
      const std::string module = absl::StrCat("base_model.model.model.layers.", layer, ".mlp.experts",
                                              gate_up && targets.size() == 2 ? ".base_layer" : "");
      const int64_t n = gate_up ? 2 * config.expert_intermediate : config.hidden;
      const int64_t k = gate_up ? config.hidden : config.expert_intermediate;
      tensors[module + ".lora_A.weight"] = random(config.num_experts * kRank, k);
      tensors[module + ".lora_B.weight"] = random(n, kRank * config.num_experts);
    }
  }
  dir.Write("adapter_model.safetensors", checkpoint::SafetensorsBytes(tensors));
  dir.Write("adapter_config.json",
            absl::StrCat(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "peft_version": "0.21.2", )",
                         R"("target_parameters": [")", absl::StrJoin(targets, R"(", ")"), "\"]}"));
}

inline std::vector<float> UnpackedRows(const ops::Weight& weight) {
  const Tensor rows(DType::kF32, {weight.n(), weight.k()});
  SY_CHECK_OK(weight.UnpackRows(0, rows));
  return {rows.data<float>(), rows.data<float>() + weight.n() * weight.k()};
}

// W + scale B A of an expert in double, rounded once; W where the adapter is for other matrices.  base: has W.
inline std::vector<float> MergedExpert(const checkpoint::LoraAdapter& adapter, int64_t layer, int64_t expert,
                                       const std::string& projection, const ops::Weight& base) {
  std::vector<float> sum = UnpackedRows(base);
  const auto found =
      adapter.matrices().find(absl::StrCat("model.layers.", layer, ".mlp.experts.", expert, ".", projection));
  if (found == adapter.matrices().end()) return sum;
  const checkpoint::AdaptedMatrix& m = found->second;
  EXPECT_EQ(m.rows, base.n());
  EXPECT_EQ(m.columns, base.k());
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.columns; ++j) {
      double added = 0;
      for (int64_t r = 0; r < m.rank; ++r) {
        added += m.scale * m.b[static_cast<size_t>(i * m.rank + r)] * m.a[static_cast<size_t>(r * m.columns + j)];
      }
      float& value = sum[static_cast<size_t>(i * m.columns + j)];
      value = static_cast<float>(value + added);
    }
  }
  EXPECT_NE(sum, UnpackedRows(base));
  return sum;
}

}  // namespace switchyard::model
