// The weights of a part of a layer's experts, for grouped products; on a device their addresses are sent in the
// stream's order.  The host runs at most two parts ahead.  Owns the lists, which have one place on a device, so this
// cannot be recorded.  Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_upload.h"

namespace switchyard::moe {

class WaveWeights {
 public:
  struct Groups {
    ops::WeightGroup gate_up, down;  // [slots]
  };

  // Allocates memory for so many slots; none on the CPU.  Errors: ResourceExhausted.
  absl::Status Reserve(Device device, int64_t slots);
  // Both of one size, null where a slot's expert is not in this part; borrowed until the next call, as the result.
  // Errors: the device's.
  absl::StatusOr<Groups> Send(const Stream& stream, const ops::WeightGroup& gate_up, const ops::WeightGroup& down);

 private:
  static constexpr int kGateUp = 0, kDown = 1;

  void Write(int array, const ops::WeightGroup& weights);

  IntUpload addresses_;  // of 64 bits, in two numbers each
  int64_t slots_ = 0;
};

}  // namespace switchyard::moe
