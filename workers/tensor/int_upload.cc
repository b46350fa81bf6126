#include "workers/tensor/int_upload.h"

#include <utility>

#include "absl/time/time.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

constexpr absl::Duration kLongestStep = absl::Seconds(60);

// Arrays begin at 256 bytes.
int64_t RoundUp(int64_t count) { return (count + 63) / 64 * 64; }

}  // namespace

absl::StatusOr<IntUpload> IntUpload::Create(Device device, const std::vector<int64_t>& counts) {
  IntUpload upload;
  int64_t room = 0;
  for (const int64_t count : counts) room += RoundUp(count);
  ASSIGN_OR_RETURN(upload.on_device_, Tensor::Allocate(DType::kI32, {room}, device));
  if (device.is_cpu()) return upload;
  for (PinnedBuffer& pinned : upload.pinned_) {
    ASSIGN_OR_RETURN(pinned, PinnedBuffer::Allocate(room * 4, device.kind));
  }
  return upload;
}

absl::Status IntUpload::Begin(const Stream& stream) {
  taken_ = 0;
  if (stream.queue() == nullptr) return absl::OkStatus();
  turn_ = 1 - turn_;
  if (sent_[turn_] == nullptr) return absl::OkStatus();
  // This copy, of two steps ago, is done unless the host runs far ahead.
  ASSIGN_OR_RETURN(const bool passed, sent_[turn_]->Passed());
  if (!passed) RETURN_IF_ERROR(stream.queue()->WaitOnHost(*sent_[turn_], MonotonicNow() + kLongestStep));
  sent_[turn_] = nullptr;
  return absl::OkStatus();
}

IntUpload::Array IntUpload::Take(int64_t count) {
  const TensorView all = on_device_.view();
  const int64_t begin = std::exchange(taken_, taken_ + RoundUp(count));
  SY_CHECK_LE(taken_, all.dim(0));
  const bool on_cpu = pinned_[turn_].data() == nullptr;
  int32_t* const host = on_cpu ? all.data<int32_t>() : reinterpret_cast<int32_t*>(pinned_[turn_].data());
  return {.host = absl::MakeSpan(host + begin, static_cast<size_t>(count)), .device = IntView(all.Rows(begin, count))};
}

absl::Status IntUpload::Send(const Stream& stream) {
  if (stream.queue() == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(stream.queue()->Copy(on_device_.view().raw(), pinned_[turn_].data(), taken_ * 4));
  ASSIGN_OR_RETURN(sent_[turn_], stream.queue()->Record());
  return absl::OkStatus();
}

}  // namespace switchyard
