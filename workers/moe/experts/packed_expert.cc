#include "workers/moe/experts/packed_expert.h"

#include "scheduler/base/check.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kAlignment = 256;  // what devices align their own memory to

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

PackedExpert::PackedExpert(int64_t hidden, int64_t ffn, DType dtype, DeviceKind device)
    : gate_up{.n = 2 * ffn, .k = hidden, .dtype = dtype, .layout = ops::WeightLayout::kGatedPanels},
      down{.n = hidden, .k = ffn, .dtype = dtype} {
  SY_CHECK_GE(hidden, 1);
  SY_CHECK_GE(ffn, 1);
  down_offset = Aligned(ops::PackedBytes(gate_up, device));
  bytes = down_offset + Aligned(ops::PackedBytes(down, device));
}

}  // namespace switchyard::moe
