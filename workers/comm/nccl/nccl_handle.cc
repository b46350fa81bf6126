#include "workers/comm/nccl/nccl_handle.h"

#include <cstring>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/await.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/cuda/cuda_status.h"

namespace switchyard::comm {
namespace {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0));

// A launch takes some 10 us, more where the machine does not run its thread; one that takes longer than this waits for
// a peer or a device.
constexpr absl::Duration kLaunchGrace = absl::Seconds(2);

constexpr char kMayBePeersEnd[] = "nccl/may_be_peers_end";  // a payload

absl::Status Released() { return absl::UnavailableError("the NCCL communicator was aborted"); }

bool IsError(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

absl::Status Explain(const char* what, ncclResult_t result) {
  const char* const more = ncclGetLastError(nullptr);
  std::string text = absl::StrCat(what, ": ", ncclGetErrorString(result));
  if (more != nullptr && *more != '\0') absl::StrAppend(&text, ": ", more);
  const bool refused = result == ncclInvalidArgument || result == ncclInvalidUsage;
  absl::Status status = refused ? absl::InternalError(text) : absl::UnavailableError(text);
  if (result == ncclRemoteError || result == ncclSystemError) status.SetPayload(kMayBePeersEnd, absl::Cord());
  return status;
}

ncclConfig_t Config(int blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking;
  return config;
}

}  // namespace

bool MayBePeersEnd(const absl::Status& error) { return error.GetPayload(kMayBePeersEnd).has_value(); }

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
  ncclConfig_t config = Config(/*blocking=*/0);
  std::unique_ptr<NcclHandle> handle(new NcclHandle(device));
  absl::MutexLock lock(&handle->mu_);
  const ncclResult_t result = ncclCommInitRankConfig(&handle->scaffold_, world, unique_id, rank, &config);
  if (IsError(result)) return Explain("ncclCommInitRankConfig", result);
  return handle;
}

NcclHandle::~NcclHandle() { Abort(); }

absl::Status NcclHandle::Connect(const std::string& what, absl::Time deadline) {
  RETURN_IF_ERROR(AwaitIdle(what, deadline));
  {
    absl::MutexLock lock(&mu_);
    if (aborted_) return Released();
    const OnDevice on(device_);
    ncclConfig_t config = Config(/*blocking=*/1);
    const ncclResult_t result = ncclCommSplit(scaffold_, /*color=*/0, /*key=*/0, &split_, &config);  // only begins
    if (IsError(result)) return Explain("ncclCommSplit", result);
  }
  RETURN_IF_ERROR(AwaitIdle(what, deadline));
  absl::MutexLock lock(&mu_);
  if (aborted_) return Released();
  if (split_ == nullptr) return absl::UnavailableError("ncclCommSplit made nothing");
  comm_ = std::exchange(split_, nullptr);
  return absl::OkStatus();
}

void NcclHandle::DropScaffold() {
  ncclComm_t scaffold = nullptr;
  {
    absl::MutexLock lock(&mu_);
    scaffold = std::exchange(scaffold_, nullptr);
  }
  const OnDevice on(device_);
  if (scaffold != nullptr) (void)ncclCommAbort(scaffold);
}

absl::StatusOr<bool> NcclHandle::Idle() {
  absl::MutexLock lock(&mu_);
  if (aborted_) return Released();
  const OnDevice on(device_);
  // Once it has served, the scaffold's peers may be gone.
  const ncclComm_t comm = comm_ == nullptr ? scaffold_ : launching_ ? nullptr : comm_;
  if (comm == nullptr) return true;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm, &state);
  if (result != ncclSuccess) return Explain("ncclCommGetAsyncError", result);
  if (state == ncclInProgress) return false;
  if (state != ncclSuccess) return Explain("NCCL's asynchronous error", state);
  return true;
}

absl::Status NcclHandle::AwaitIdle(const std::string& what, absl::Time deadline) {
  for (;;) {
    ASSIGN_OR_RETURN(const bool idle, Idle());
    if (idle) return absl::OkStatus();
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(what, " was still in progress at its deadline"));
    }
    absl::SleepFor(absl::Microseconds(200));
  }
}

absl::Status NcclHandle::Launch(absl::FunctionRef<ncclResult_t(ncclComm_t)> ops) {
  ncclComm_t comm = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (aborted_) return Released();
    SY_CHECK(comm_ != nullptr && !launching_);
    comm = comm_;
    launching_ = true;
  }
  ncclResult_t called = ncclGroupStart();
  const bool started = called == ncclSuccess;
  if (started) called = ops(comm);
  const ncclResult_t ended = started ? ncclGroupEnd() : ncclSuccess;  // also after an error: it closes what was started
  absl::MutexLock lock(&mu_);
  launching_ = false;
  if (aborted_) return Released();  // comm may be gone
  if (called != ncclSuccess) return Explain("NCCL's call", called);
  return ended == ncclSuccess ? absl::OkStatus() : Explain("ncclGroupEnd", ended);
}

void NcclHandle::Abort() {
  ncclComm_t scaffold = nullptr, comm = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(aborted_, true)) return;
    const auto returned = [this] {
      mu_.AssertReaderHeld();
      return !launching_;
    };
    AwaitUntil(&mu_, absl::Condition(&returned), MonotonicNow() + kLaunchGrace);
    scaffold = std::exchange(scaffold_, nullptr);
    comm = std::exchange(comm_, nullptr);
  }
  const OnDevice on(device_);
  if (scaffold != nullptr) (void)ncclCommAbort(scaffold);  // ends a split that is under way
  if (comm == nullptr) comm = std::exchange(split_, nullptr);
  if (comm != nullptr) (void)ncclCommAbort(comm);
}

}  // namespace switchyard::comm
