// PackedUploads packs weights of few bits for a device.  Their panels hold words of many rows, which a device's memory
// cannot get row by row: each weight is packed on the host, and copied when all of its rows are there.  So the host
// holds the weights of which a loader has read some rows, not all: with files that have a layer's gates before its ups,
// those of a layer. Thread-safe, for disjoint rows of a weight.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device_writer.h"

namespace switchyard::model {

class PackedUploads {
 public:
  // writer: null where weights are in the host's memory; it outlives this.
  explicit PackedUploads(DeviceWriter* writer) : writer_(writer) {}
  ~PackedUploads();  // weights of which rows are missing are not copied

  // Calls pack(host), which packs `rows` rows of the weight, each once for all calls, and of which `host` is: the
  // weight itself where it is in the host's memory or its rows can be written one by one, else its copy on the host.
  // Errors: pack's; ResourceExhausted; the device's.
  absl::Status Pack(ops::Weight* weight, int64_t rows, absl::FunctionRef<absl::Status(ops::Weight* host)> pack);

 private:
  struct HostCopy {
    ops::Weight host;
    int64_t left = 0;  // rows
  };

  absl::Status FindHostCopy(const ops::Weight& weight, HostCopy** copy);

  DeviceWriter* const writer_;
  absl::Mutex mu_;
  absl::flat_hash_map<const ops::Weight*, std::unique_ptr<HostCopy>> copies_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::model
