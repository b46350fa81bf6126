#include "workers/comm/nccl/nccl_handle.h"

#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/cuda/cuda_status.h"

namespace switchyard::comm {
namespace {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0));

absl::Status Release() { return absl::UnavailableError("the NCCL communicator was aborted"); }

}  // namespace

OnDevice::OnDevice(int device) {
  // An error here comes again from the next call, with more detail.
  (void)cudaGetDevice(&before_);
  (void)cudaSetDevice(device);
}

OnDevice::~OnDevice() { (void)cudaSetDevice(before_); }

absl::StatusOr<std::string> NcclHandle::NewId() {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) {
    return absl::UnavailableError(
        absl::StrCat("ncclGetUniqueId: ", ncclGetErrorString(result), ": ", ncclGetLastError(nullptr)));
  }
  return absl::BytesToHexString(absl::string_view(id.internal, sizeof(id.internal)));
}

absl::StatusOr<std::unique_ptr<NcclHandle>> NcclHandle::Begin(int device, int rank, int world, const std::string& id) {
  const std::string bytes = absl::HexStringToBytes(id);
  ncclUniqueId unique_id;
  if (bytes.size() != sizeof(unique_id.internal)) {
    return absl::InternalError(
        absl::StrCat("an NCCL id of ", bytes.size(), " bytes, not ", sizeof(unique_id.internal)));
  }
  std::memcpy(unique_id.internal, bytes.data(), bytes.size());
  SY_RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::unique_ptr<NcclHandle> handle(new NcclHandle(device));
  absl::MutexLock lock(&handle->mu_);
  const ncclResult_t result = ncclCommInitRankConfig(&handle->comm_, world, unique_id, rank, &config);
  if (result != ncclSuccess && result != ncclInProgress) return handle->Explain("ncclCommInitRankConfig", result);
  return handle;
}

NcclHandle::~NcclHandle() { Abort(); }

absl::Status NcclHandle::Explain(const char* what, ncclResult_t result) const {
  const char* const more = ncclGetLastError(comm_);
  std::string text = absl::StrCat(what, ": ", ncclGetErrorString(result));
  if (more != nullptr && *more != '\0') absl::StrAppend(&text, ": ", more);
  const bool refused = result == ncclInvalidArgument || result == ncclInvalidUsage;
  return refused ? absl::InternalError(text) : absl::UnavailableError(text);
}

absl::StatusOr<bool> NcclHandle::Finalized() {
  absl::MutexLock lock(&mu_);
  if (comm_ == nullptr) return Release();
  const OnDevice on(device_);
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  if (result != ncclSuccess) return Explain("ncclCommGetAsyncError", result);
  if (state == ncclInProgress) return false;
  if (state != ncclSuccess) return Explain("NCCL's asynchronous error", state);
  return true;
}

absl::Status NcclHandle::AwaitFinalized(const std::string& what, absl::Time deadline) {
  // A launch takes microseconds, connecting takes seconds.
  constexpr int kYields = 200;
  for (int i = 0;; ++i) {
    ASSIGN_OR_RETURN(const bool finalized, Finalized());
    if (finalized) return absl::OkStatus();
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(what, " was still in progress at its deadline"));
    }
    if (i < kYields) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(absl::Microseconds(200));
    }
  }
}

absl::Status NcclHandle::Launch(absl::FunctionRef<ncclResult_t(ncclComm_t)> ops) {
  absl::MutexLock lock(&mu_);
  if (comm_ == nullptr) return Release();
  if (const ncclResult_t result = ncclGroupStart(); result != ncclSuccess) return Explain("ncclGroupStart", result);
  const ncclResult_t called = ops(comm_);
  const ncclResult_t ended = ncclGroupEnd();  // also after an error: it closes what was started
  if (called != ncclSuccess && called != ncclInProgress) return Explain("NCCL's call", called);
  if (ended != ncclSuccess && ended != ncclInProgress) return Explain("ncclGroupEnd", ended);
  return absl::OkStatus();
}

ncclComm_t NcclHandle::ReleaseIt() {
  absl::MutexLock lock(&mu_);
  return std::exchange(comm_, nullptr);
}

// Without the lock: NCCL waits until the graphs with its collectives are destroyed, and their owner may need our state
// before it destroys them.
void NcclHandle::Abort() {
  const ncclComm_t comm = ReleaseIt();
  if (comm == nullptr) return;
  const OnDevice on(device_);
  (void)ncclCommAbort(comm);
}

absl::Status NcclHandle::Close(absl::Time deadline) {
  const OnDevice on(device_);
  {
    absl::MutexLock lock(&mu_);
    if (comm_ == nullptr) return Release();
    const ncclResult_t result = ncclCommFinalize(comm_);
    if (result != ncclSuccess && result != ncclInProgress) return Explain("ncclCommFinalize", result);
  }
  RETURN_IF_ERROR(AwaitFinalized("ncclCommFinalize", deadline));
  const ncclComm_t comm = ReleaseIt();
  if (comm == nullptr) return Release();
  const ncclResult_t result = ncclCommDestroy(comm);
  absl::MutexLock lock(&mu_);
  return result == ncclSuccess ? absl::OkStatus() : Explain("ncclCommDestroy", result);
}

}  // namespace switchyard::comm
