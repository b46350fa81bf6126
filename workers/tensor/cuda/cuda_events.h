// A pool of CUDA events of one device: making an event may wait for the driver, so events are used again.
// Thread-safe.  Internal to files that include CUDA.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "workers/tensor/cuda/cuda_status.h"

namespace switchyard {

class CudaEvents {
 public:
  // Returns to the pool with its last owner: both the waiter for an event and its watcher own it.
  using Event = std::shared_ptr<std::remove_pointer_t<cudaEvent_t>>;

  ~CudaEvents() {
    absl::MutexLock lock(&mu_);
    for (const cudaEvent_t event : unused_) (void)cudaEventDestroy(event);
  }

  // An event recorded on `stream` of the current device.
  static absl::StatusOr<Event> Record(const std::shared_ptr<CudaEvents>& self, cudaStream_t stream) {
    cudaEvent_t event = nullptr;
    {
      absl::MutexLock lock(&self->mu_);
      if (!self->unused_.empty()) {
        event = self->unused_.back();
        self->unused_.pop_back();
      }
    }
    if (event == nullptr) SY_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    Event owned(event, [self](cudaEvent_t unused) {
      absl::MutexLock lock(&self->mu_);
      self->unused_.push_back(unused);
    });
    SY_RETURN_IF_CUDA_ERROR(cudaEventRecord(event, stream));
    return owned;
  }

 private:
  absl::Mutex mu_;
  std::vector<cudaEvent_t> unused_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard
