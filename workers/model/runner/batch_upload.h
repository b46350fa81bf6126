// Brings a step's batch to where a device's ops find it.  The CPU needs none.
//
// Thread-compatible.  What Send has set in the batch is valid for work that is enqueued before the next Send.
#pragma once

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

  // Enqueues the copies and sets batch->on_device (borrowed from this).  cache: any layer's, to check against.
  // Errors (InvalidArgument): rows or blocks outside the limits.
  absl::Status Send(const Stream& stream, const ops::KvCacheView& cache, Batch* batch);
  // The same for a graph of bounds.decodes rows, row i of sequence i: rows that are missing are padding.  All rows'
  // logits are wanted, also those of padding.  REQUIRES: the batch has no more, one row a sequence.
  absl::Status SendDecodes(const Stream& stream, const ops::KvCacheView& cache, Batch* batch,
                           const ops::DecodeBounds& bounds);

 private:
  enum Array { kTokens, kRopeRows, kLogitRows, kNumRows, kNumArrays };

  ops::SequenceLimits limits_;
  IntUpload ints_;
  ops::DeviceSequences sequences_;
  BatchOnDevice on_device_;
};

}  // namespace switchyard::model
