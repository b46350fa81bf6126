// The parameters of a model with adapters: what is loaded of its base, and how adapters begin.
#include <cmath>
#include <utility>

#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/weights/adapters.h"
#include "workers/ops/gemm/backward/transposed_weight.h"
#include "workers/ops/sampling/random.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/parameters/parameters.h"

namespace switchyard::train {
namespace {

// In [0, 1), one for each name and index.
double Uniform(uint64_t seed, uint64_t name, uint64_t index) {
  const auto word = [](uint64_t value, int half) { return static_cast<uint32_t>(value >> (32 * half)); };
  const std::array<uint32_t, 4> bits =
      ops::Philox4x32({word(index, 0), word(index, 1), word(name, 0), word(name, 1)}, {word(seed, 0), word(seed, 1)});
  return static_cast<double>((static_cast<uint64_t>(bits[0]) << 21) ^ (bits[1] >> 11)) * 0x1p-53;
}

}  // namespace

// Without masters: straight into the model, then their transposes, one weight at a time.
absl::Status Parameters::LoadBase(const checkpoint::Checkpoint& checkpoint, const std::vector<model::Param>& params,
                                  model::LoadOptions options) {
  RETURN_IF_ERROR(model::LoadParams(checkpoint, params, std::move(options)));
  for (ParameterBlock& block : blocks_) {
    if (!block.base || block.weight == nullptr) continue;
    ASSIGN_OR_RETURN(const Tensor rows, Tensor::Allocate(model_->dtype(), block.StateShape(), stream_.device()));
    RETURN_IF_ERROR(block.weight->UnpackRows(0, rows));
    RETURN_IF_ERROR(ops::PackTransposed(stream_, rows, &block.transposed));
  }
  return absl::OkStatus();
}

// (PEFT: kaiming_uniform_ of A with a = sqrt(5), whose bound is sqrt(6 / ((1 + 5) k)).)
absl::Status Parameters::InitialiseAdapters(uint64_t seed) {
  for (ParameterBlock& block : blocks_) {
    if (block.base) continue;
    const model::Param& param = block.parts.front();
    if (model::IsAdapterB(param)) {
      RETURN_IF_ERROR(FillZero(stream_, block.master));
      continue;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(param.columns));
    const uint64_t name = Fnv1a(param.name);
    VisitDType(block.master.dtype(), [&]<class Elem>() {
      Elem* const values = block.master.data<Elem>();
      for (int64_t i = 0; i < block.size(); ++i) {
        values[i] = static_cast<Elem>(bound * (2 * Uniform(seed, name, static_cast<uint64_t>(i)) - 1));
      }
    });
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
