// WaveWeights: the weights of a part of a layer's experts, where these are not all in tables.  Thread-compatible.
#pragma once

#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm/weight_group.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_upload.h"

namespace switchyard::moe {

// The weights of a part of a layer's experts, for grouped products; on a device their addresses are sent in the
// stream's order.  The host runs at most two parts ahead.  The lists have one place on a device, so this cannot be
// recorded.
class WaveWeights {
 public:
  struct Groups {
    ops::WeightGroup gate_up, down;  // [slots]
  };

  // Allocates memory for so many slots; none on the CPU.  Errors: ResourceExhausted.
  absl::Status Reserve(Device device, int64_t slots) {
    if (device.is_cpu() || slots <= slots_) return absl::OkStatus();
    ASSIGN_OR_RETURN(addresses_, IntUpload::Create(device, {slots * kNumbers, slots * kNumbers}));
    slots_ = slots;
    return absl::OkStatus();
  }

  // Both of one size, null where a slot's expert is not in this part; borrowed until the next call, as the result.
  // Errors: the device's.
  absl::StatusOr<Groups> Send(const Stream& stream, const ops::WeightGroup& gate_up, const ops::WeightGroup& down) {
    SY_CHECK_EQ(gate_up.size(), down.size());
    if (stream.device().is_cpu()) return Groups{gate_up, down};
    const int64_t numbers = gate_up.size() * kNumbers;
    RETURN_IF_ERROR(Reserve(stream.device(), gate_up.size()));
    RETURN_IF_ERROR(addresses_.Begin(stream));
    const auto written = [&](const ops::WeightGroup& weights) {
      const IntUpload::Array list = addresses_.Take(numbers);
      Write(weights, list.host);
      return ops::WeightGroup(weights.weights(),
                              static_cast<const void* const*>(static_cast<const void*>(list.device.data())));
    };
    const Groups groups = {.gate_up = written(gate_up), .down = written(down)};
    RETURN_IF_ERROR(addresses_.Send(stream));
    return groups;
  }

 private:
  static constexpr int64_t kNumbers = sizeof(void*) / sizeof(int32_t);  // of an address

  static void Write(const ops::WeightGroup& weights, absl::Span<int32_t> list) {
    char* to = reinterpret_cast<char*>(list.data());
    for (int64_t i = 0; i < weights.size(); ++i, to += sizeof(void*)) {
      const void* const address = weights[i] == nullptr ? nullptr : weights[i]->data();
      std::memcpy(to, &address, sizeof(address));
    }
  }

  IntUpload addresses_;
  int64_t slots_ = 0;
};

}  // namespace switchyard::moe
