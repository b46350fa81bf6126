#include "workers/tensor/copy.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/device_queue.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {

absl::Status CopyTensor(const Stream& stream, const TensorView& from, const TensorView& to) {
  const bool fits = from.shape() == to.shape() && from.dtype() == to.dtype();
  if (!fits || (stream.queue() != nullptr && !(from.contiguous() && to.contiguous()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("copy: ", from.ToString(), " to ", to.ToString(), fits ? ": rows with a stride" : ""));
  }
  if (from.empty()) return absl::OkStatus();
  const int64_t row_bytes = from.NumElements() / from.dim(0) * DTypeBytes(from.dtype());
  if (stream.queue() != nullptr) return stream.queue()->Copy(to.raw(), from.raw(), from.dim(0) * row_bytes);
  for (int64_t i = 0; i < from.dim(0); ++i) {
    std::memcpy(to.Rows(i, 1).raw(), from.Rows(i, 1).raw(), static_cast<size_t>(row_bytes));
  }
  return absl::OkStatus();
}

absl::Status RoundRows(const Stream& stream, const TensorView& from, const TensorView& to) {
  if (!(from.shape() == to.shape()) || from.rank() == 0 || !IsFloating(from.dtype()) || !IsFloating(to.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat("round: ", from.ToString(), " to ", to.ToString()));
  }
  if (stream.queue() != nullptr) return absl::UnimplementedError("round: rows on a device");
  if (from.empty()) return absl::OkStatus();
  const int64_t width = from.NumElements() / from.dim(0);
  constexpr int64_t kGrainElements = 16 << 10;
  VisitDType(from.dtype(), [&]<class From>() {
    VisitDType(to.dtype(), [&]<class To>() {
      stream.pool().ParallelFor(from.dim(0), 1 + kGrainElements / width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          std::transform(from.row<From>(row), from.row<From>(row) + width, to.row<To>(row), [](From value) {
            return static_cast<To>(static_cast<Acc<To>>(static_cast<Acc<From>>(value)));
          });
        }
      });
    });
  });
  return absl::OkStatus();
}

absl::Status FillZero(const Stream& stream, const TensorView& view) {
  SY_CHECK(view.contiguous());
  const int64_t bytes = view.NumElements() * DTypeBytes(view.dtype());
  if (stream.queue() != nullptr) return stream.queue()->Fill(view.raw(), 0, bytes);
  char* const to = static_cast<char*>(view.raw());
  stream.pool().ParallelFor(bytes, int64_t{1} << 20, [to](int64_t begin, int64_t end) {
    std::memset(to + begin, 0, static_cast<size_t>(end - begin));
  });
  return absl::OkStatus();
}

absl::Status Synchronize(const Stream& stream, absl::Time deadline) {
  return stream.queue() == nullptr ? absl::OkStatus() : stream.queue()->Synchronize(deadline);
}

absl::StatusOr<Tensor> CopyToDevice(const Stream& stream, const TensorView& from) {
  ASSIGN_OR_RETURN(Tensor to, Tensor::Allocate(from.dtype(), from.shape(), stream.device()));
  if (stream.queue() == nullptr || from.empty()) {
    RETURN_IF_ERROR(CopyTensor(stream, from, to));
    return to;
  }
  ASSIGN_OR_RETURN(const PinnedBuffer pinned, PinnedBuffer::Allocate(to.bytes(), stream.device().kind));
  const int64_t row_bytes = to.bytes() / from.dim(0);
  for (int64_t i = 0; i < from.dim(0); ++i) {
    std::memcpy(pinned.data() + i * row_bytes, from.Rows(i, 1).raw(), static_cast<size_t>(row_bytes));
  }
  RETURN_IF_ERROR(stream.queue()->Copy(to.view().raw(), pinned.data(), to.bytes()));
  RETURN_IF_ERROR(Synchronize(stream));
  return to;
}

absl::StatusOr<Tensor> CopyToHost(const Stream& stream, const TensorView& from) {
  Tensor to(from.dtype(), from.shape());
  if (stream.queue() == nullptr || from.empty()) {
    RETURN_IF_ERROR(CopyTensor(stream, from, to));
    return to;
  }
  // Rows with a stride: copies everything from the first element to the last.
  const int64_t elem_bytes = DTypeBytes(from.dtype()), row_bytes = to.bytes() / from.dim(0);
  const int64_t stride_bytes = from.dim(0) > 1 ? from.row_stride() * elem_bytes : row_bytes;
  const int64_t span_bytes = (from.dim(0) - 1) * stride_bytes + row_bytes;
  ASSIGN_OR_RETURN(const PinnedBuffer pinned, PinnedBuffer::Allocate(span_bytes, stream.device().kind));
  RETURN_IF_ERROR(stream.queue()->Copy(pinned.data(), from.raw(), span_bytes));
  RETURN_IF_ERROR(Synchronize(stream));
  for (int64_t i = 0; i < from.dim(0); ++i) {
    std::memcpy(static_cast<char*>(to.view().raw()) + i * row_bytes, pinned.data() + i * stride_bytes,
                static_cast<size_t>(row_bytes));
  }
  return to;
}

absl::StatusOr<TensorView> HostCopy::Take(const Stream& stream, const TensorView& from, absl::Time deadline) {
  if (stream.queue() == nullptr) return from;
  const int64_t bytes = from.NumElements() * DTypeBytes(from.dtype());
  if (pinned_.bytes() < bytes) {
    const int64_t wanted = std::max(bytes, 2 * pinned_.bytes());
    pinned_ = PinnedBuffer();  // frees the old memory first
    ASSIGN_OR_RETURN(pinned_, PinnedBuffer::Allocate(wanted, stream.device().kind));
  }
  const TensorView to(pinned_.data(), from.dtype(), from.shape());
  RETURN_IF_ERROR(CopyTensor(stream, from, to));
  RETURN_IF_ERROR(Synchronize(stream, deadline));
  return to;
}

}  // namespace switchyard
