#include "workers/moe/experts/wave_weights.h"

#include <cstring>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kNumbers = sizeof(void*) / sizeof(int32_t);  // of an address

}  // namespace

absl::Status WaveWeights::Reserve(Device device, int64_t slots) {
  if (device.is_cpu() || slots <= slots_) return absl::OkStatus();
  ASSIGN_OR_RETURN(addresses_, IntUpload::Create(device, {slots * kNumbers, slots * kNumbers}));
  slots_ = slots;
  return absl::OkStatus();
}

void WaveWeights::Write(int array, const ops::WeightGroup& weights) {
  char* to = reinterpret_cast<char*>(addresses_.host(array).data());
  for (int64_t i = 0; i < weights.size(); ++i, to += sizeof(void*)) {
    const void* const address = weights[i] == nullptr ? nullptr : weights[i]->data();
    std::memcpy(to, &address, sizeof(address));
  }
}

absl::StatusOr<WaveWeights::Groups> WaveWeights::Send(const Stream& stream, const ops::WeightGroup& gate_up,
                                                      const ops::WeightGroup& down) {
  SY_CHECK_EQ(gate_up.size(), down.size());
  if (stream.device().is_cpu()) return Groups{gate_up, down};
  const int64_t numbers = gate_up.size() * kNumbers;
  RETURN_IF_ERROR(Reserve(stream.device(), gate_up.size()));
  RETURN_IF_ERROR(addresses_.Begin(stream));
  Write(kGateUp, gate_up);
  Write(kDown, down);
  RETURN_IF_ERROR(addresses_.Send(stream, {numbers, numbers}));
  const auto on_device = [&](int array, const ops::WeightGroup& weights) {
    const void* const list = addresses_.view(array, numbers).data();
    return ops::WeightGroup(weights.weights(), static_cast<const void* const*>(list));
  };
  return Groups{on_device(kGateUp, gate_up), on_device(kDown, down)};
}

}  // namespace switchyard::moe
