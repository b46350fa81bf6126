// Copies a step's batch to a device's memory.  The CPU needs none.  Thread-compatible.
// The pointers that Send sets in the batch are valid for work that is enqueued before the next Send.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/model/forward/batch.h"
#include "workers/ops/sampling/device_sequences.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_upload.h"

namespace switchyard::model {

class BatchUpload {
 public:
  BatchUpload() = default;
  // Errors: ResourceExhausted, the device's.
  static absl::StatusOr<BatchUpload> Create(Device device, const ops::SequenceLimits& limits);
  // The counts of the arrays that a batch takes of an IntUpload, at most.
  static std::vector<int64_t> CountsOf(const ops::SequenceLimits& limits);

  // Takes arrays of `upload`, sends it with all that was taken before, and sets batch->on_device (borrowed from this).
  // cache: any layer's, for checks.  REQUIRES: upload->Begin.
  // Errors (InvalidArgument): rows or blocks outside the limits.
  absl::Status Send(const Stream& stream, IntUpload* upload, const ops::KvCacheView& cache, Batch* batch);
  // The same for a graph of bounds.decodes rows, row i of sequence i; missing rows are padding.  All rows' logits are
  // wanted, also those of padding.  REQUIRES: the batch has at most so many rows, one a sequence.
  absl::Status SendDecodes(const Stream& stream, IntUpload* upload, const ops::KvCacheView& cache, Batch* batch,
                           const ops::DecodeBounds& bounds);

 private:
  ops::SequenceLimits limits_;
  ops::DeviceSequences sequences_;
  BatchOnDevice on_device_;
};

}  // namespace switchyard::model
