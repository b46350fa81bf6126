#include "workers/ops/core/cuda_call.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "scheduler/base/env.h"
#include "workers/tensor/device_queue.h"

namespace switchyard::ops {
namespace {

std::atomic<const CudaKernelTable*> cuda_kernels{nullptr};

}  // namespace

const CudaKernelTable* CudaKernels() { return cuda_kernels.load(std::memory_order_acquire); }

void SetCudaKernels(const CudaKernelTable* table) { cuda_kernels.store(table, std::memory_order_release); }

absl::StatusOr<CudaCall> MakeCudaCall(const Stream& stream) {
  DeviceQueue* const queue = stream.queue();
  CudaCall call = {.stream = queue->handle(),
                   .device = queue->device().index,
                   .num_sms = queue->num_multiprocessors(),
                   .deterministic = queue->deterministic()};
  ASSIGN_OR_RETURN(call.workspace, queue->Workspace(kCudaWorkspaceBytes));
  return call;
}

absl::Status CheckCudaLaunch(absl::string_view op, const Stream& stream, int error) {
  if (error != 0) {
    const std::string message = absl::StrCat(op, " on ", stream.device().ToString(), ": ",
                                             CudaKernels()->error_string(error), " (CUDA error ", error, ")");
    return CudaKernels()->device_lost(error) ? absl::UnavailableError(message) : absl::InternalError(message);
  }
  static const bool sync_ops = EnvBool("SY_SYNC_OPS");
  if (!sync_ops) return absl::OkStatus();
  const absl::Status status = stream.queue()->Synchronize(absl::InfiniteFuture());
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat("after ", op, ": ", status.message()));
}

}  // namespace switchyard::ops
