// A step's sequences in a device's memory, where kernels read them: checked once, then the same for every layer.
//
// Bounds that the host knows size the launches.  A step that runs by itself has its own numbers for bounds; a captured
// graph has the largest that it may be replayed with, and marks missing sequences as none.
// Block tables stay on the device, a row for each slot (SequenceRows::slot), and a step sends what is new in them: so
// its bytes do not grow with the context.  New entries are written in the stream's order, behind the steps under way.
// Kernels know a sequence by its slot; where it has none, by its place in the step.
// Thread-compatible.  Does not exist on the CPU, where ops read SequenceRows.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/ops/attention/kv_cache_view.h"
#include "workers/ops/core/kernels_cuda.h"
#include "workers/tensor/device.h"
#include "workers/tensor/int_upload.h"
#include "workers/tensor/tensor.h"

namespace switchyard::ops {

struct SequenceLimits {
  int64_t sequences = 0;  // of a step
  int64_t rows = 0;       // of a step
  int64_t blocks = 0;     // of a sequence
};

// The bounds of a graph, which runs steps of decodes alone.
struct DecodeBounds {
  int64_t decodes = 0;   // sequences of one row each
  int64_t max_keys = 0;  // positions of one sequence
};

// kCudaQueryTile queries of one sequence, or what is left of it.
struct QueryTile {
  int32_t sequence = 0;
  int32_t first_query = 0;  // from the sequence's first
  int32_t end_key = 0;      // its last query sees keys up to here, windows apart
};

class DeviceSequences {
 public:
  DeviceSequences() = default;
  static absl::StatusOr<DeviceSequences> Create(Device device, const SequenceLimits& limits);
  // The counts of the arrays that a step takes of an IntUpload, at most.
  static std::vector<int64_t> CountsOf(const SequenceLimits& limits);

  // Takes arrays of `upload` and sends it, with all that was taken before.  REQUIRES: upload->Begin.
  // Errors (InvalidArgument): as WriteKv's; more than the limits.  After one of the device's the slots' sequences must
  // be new ones.
  absl::Status Set(const Stream& stream, IntUpload* upload, absl::Span<const SequenceRows> sequences, int64_t num_rows,
                   const KvCacheView& cache);
  // As above for a graph.  REQUIRES: at most bounds.decodes sequences, each of one row, row i of sequence i.
  absl::Status SetDecodes(const Stream& stream, IntUpload* upload, absl::Span<const SequenceRows> sequences,
                          const DecodeBounds& bounds, const KvCacheView& cache);

  // The kernels' argument; tiles with the most keys come first.  Valid for work that is enqueued before the next Set.
  const CudaSequences& view() const { return view_; }

 private:
  // What the device has of a slot's table.
  struct Known {
    uint64_t generation = 0;
    int64_t blocks = 0;
  };

  absl::Status Send(const Stream& stream, IntUpload* upload, absl::Span<const SequenceRows> sequences, int64_t rows,
                    int64_t num_decodes);
  // Finds what of the block tables the device does not have.
  void FindTableWrites(absl::Span<const SequenceRows> sequences);
  // Sends the upload, then makes table_writes_.
  absl::Status SendTableWrites(const Stream& stream, IntUpload* upload);

  SequenceLimits limits_;
  Tensor table_;              // [sequences, blocks] int32
  std::vector<Known> known_;  // [sequences]
  // Of the last step; kept for their capacity.
  std::vector<QueryTile> tiles_;
  std::vector<int32_t> new_blocks_;         // entries of table_ that the device does not have
  std::vector<SequenceRows> table_writes_;  // where runs of them go in table_, as WriteKv wants it
  CudaSequences view_;
};

}  // namespace switchyard::ops
