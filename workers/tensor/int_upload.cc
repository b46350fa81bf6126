#include "workers/tensor/int_upload.h"

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

constexpr absl::Duration kLongestStep = absl::Seconds(60);

}  // namespace

absl::StatusOr<IntUpload> IntUpload::Create(Device device, std::vector<int64_t> capacities) {
  IntUpload upload;
  int64_t total = 0;
  for (const int64_t capacity : capacities) {
    upload.offsets_.push_back(total);
    total += (capacity + kAlign - 1) / kAlign * kAlign;
  }
  upload.capacities_ = std::move(capacities);
  ASSIGN_OR_RETURN(upload.on_device_, Tensor::Allocate(DType::kI32, {total}, device));
  if (device.is_cpu()) return upload;
  for (PinnedBuffer& pinned : upload.pinned_) {
    ASSIGN_OR_RETURN(pinned, PinnedBuffer::Allocate(total * 4, device.kind));
  }
  return upload;
}

absl::Span<int32_t> IntUpload::host(int array) {
  const bool on_cpu = pinned_[turn_].data() == nullptr;
  int32_t* const base = on_cpu ? on_device_.data<int32_t>() : reinterpret_cast<int32_t*>(pinned_[turn_].data());
  return absl::MakeSpan(base + offsets_[array], static_cast<size_t>(capacities_[array]));
}

absl::Status IntUpload::Begin(const Stream& stream) {
  if (stream.queue() == nullptr) return absl::OkStatus();
  turn_ = 1 - turn_;
  if (sent_[turn_] == nullptr) return absl::OkStatus();
  // This copy, of two steps ago, is done unless the host runs far ahead.
  ASSIGN_OR_RETURN(const bool passed, sent_[turn_]->Passed());
  if (!passed) RETURN_IF_ERROR(stream.queue()->WaitOnHost(*sent_[turn_], absl::Now() + kLongestStep));
  sent_[turn_] = nullptr;
  return absl::OkStatus();
}

absl::Status IntUpload::Send(const Stream& stream, absl::Span<const int64_t> counts) {
  SY_CHECK_EQ(counts.size(), capacities_.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    SY_CHECK_LE(counts[i], capacities_[i]);
    if (stream.queue() == nullptr || counts[i] == 0) continue;
    RETURN_IF_ERROR(stream.queue()->Copy(on_device_.data<int32_t>() + offsets_[i],
                                         pinned_[turn_].data() + offsets_[i] * 4, counts[i] * 4));
  }
  if (stream.queue() == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(sent_[turn_], stream.queue()->Record());
  return absl::OkStatus();
}

IntView IntUpload::view(int array, int64_t count) const {
  SY_CHECK_LE(count, capacities_[array]);
  return IntView(on_device_.view().Rows(offsets_[array], count));
}

}  // namespace switchyard
