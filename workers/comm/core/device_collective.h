// Collectives on views: the memory that a caller gives (SizedParts) and the checked call that a backend carries out
// (DeviceCollective).
//
// Plain data; borrows everything.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "workers/comm/core/op_key.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard::comm {

// One side of an all-to-all, or both of a gather, with sizes that both sides know: bytes [offsets[r], offsets[r] +
// bytes[r]) of `memory` are rank r's.  The spans are read during the call only.  Parts may lie anywhere in `memory`;
// received parts must not overlap.
struct SizedParts {
  TensorView memory;                  // contiguous, any shape and dtype
  absl::Span<const int64_t> offsets;  // [R] in bytes
  absl::Span<const int64_t> bytes;    // [R] 0 = no message, on both sides
};

// One collective, checked and numbered.  key.op decides which fields mean something.
struct DeviceCollective {
  OpKey key;
  const Stream* stream = nullptr;  // of the views' device; null only where they are on the CPU
  absl::Time deadline = absl::InfiniteFuture();
  TensorView send = {};                         // kFence: none
  TensorView recv = {};                         // the same memory as send for kAllReduceSum and kAllGatherSized
  absl::Span<const int64_t> send_offsets = {};  // [R] of sized ops, during the call only; so the next three
  absl::Span<const int64_t> send_bytes = {};
  absl::Span<const int64_t> recv_offsets = {};
  absl::Span<const int64_t> recv_bytes = {};
};

inline char* BytesAt(const TensorView& view, int64_t offset) { return static_cast<char*>(view.raw()) + offset; }
inline int64_t NumBytes(const TensorView& view) { return view.NumElements() * DTypeBytes(view.dtype()); }

// InvalidArgument names what does not fit: counts of ranks, a part outside its memory, received parts that overlap, own
// parts of different size, strided memory, another device than the stream's.
absl::Status CheckSizedParts(const SizedParts& send, const SizedParts& recv, int rank, int world);
absl::Status CheckGatheredParts(const SizedParts& parts, int world);
absl::Status CheckStreamOf(const Stream* stream, const TensorView& view);

}  // namespace switchyard::comm
