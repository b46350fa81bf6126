#include "workers/comm/nccl/nccl_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "scheduler/base/await.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/group/late_ranks.h"
#include "workers/tensor/cuda/cuda_status.h"

namespace switchyard::comm {
namespace {

constexpr absl::Duration kLookPeriod = absl::Milliseconds(1);     // while something is under way
constexpr absl::Duration kIdlePeriod = absl::Milliseconds(20);    // else
constexpr absl::Duration kFreshWithin = absl::Milliseconds(500);  // for the peers' reports, once something is wrong
constexpr absl::Duration kEndWithin = absl::Seconds(2);           // for launches under way when the group is destroyed
constexpr absl::Duration kGrace = absl::Seconds(2);  // after a deadline, for the watchdog to name the late ranks

}  // namespace

NcclGroup::NcclGroup(int device, std::unique_ptr<Communicator> host) : device_(device), host_(std::move(host)) {}

NcclGroup::~NcclGroup() { End(); }

void NcclGroup::StartPeerWatch(std::unique_ptr<Communicator> watch, const PeerWatchOptions& options) {
  peers_ = std::make_unique<PeerWatch>(
      std::move(watch), options, [this] { return Report(); },
      [this](const absl::Status& status) { FailByPeer(status); });
  peers_->Start();
}

void NcclGroup::StartWatchdog(std::unique_ptr<NcclHandle> nccl) {
  nccl_ = std::move(nccl);
  watchdog_ = std::thread([this] { WatchUntilTheEnd(); });
}

absl::Status NcclGroup::BecomeReady() {
  absl::MutexLock lock(&mu_);
  if (status_.ok()) MoveTo(&state_, NcclState::kReady);
  return status_;
}

absl::Status NcclGroup::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

NcclState NcclGroup::state() const {
  absl::MutexLock lock(&mu_);
  return state_;
}

absl::Status NcclGroup::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (!status_.ok() || state_ == NcclState::kClosed) return status_;
    status_ = status;
    MoveTo(&state_, NcclState::kFailed);
  }
  if (peers_ != nullptr) peers_->Fail(status.message());
  host_->Abort(status.message());
  return status;
}

absl::Status NcclGroup::FailByNccl(const absl::Status& error) {
  if (!MayBePeersEnd(error)) return Fail(error);
  const std::string text(error.message());
  {
    absl::MutexLock lock(&mu_);
    if (!status_.ok()) return status_;
    nccl_error_ = text;
  }
  return Fail(absl::UnavailableError(NameTheLost(text)));
}

void NcclGroup::FailByPeer(const absl::Status& status) {
  std::string text(status.message());
  {
    absl::MutexLock lock(&mu_);
    if (!nccl_error_.empty()) absl::StrAppend(&text, "; here ", nccl_error_);
  }
  (void)Fail(absl::Status(status.code(), text));
}

std::string NcclGroup::NameTheLost(absl::string_view nccl_error) const {
  if (peers_ == nullptr) return std::string(nccl_error);
  const std::vector<int> silent = peers_->Silent(MonotonicNow() + kFreshWithin);
  if (peers_->left() >= 0) return absl::StrCat("rank ", peers_->left(), " has left the group: ", nccl_error);
  if (silent.empty()) return absl::StrCat(nccl_error, " (no peer is known to be gone)");
  return absl::StrCat("rank ", absl::StrJoin(silent, " and rank "), silent.size() == 1 ? " does" : " do",
                      " not answer: ", nccl_error);
}

absl::StatusOr<int64_t> NcclGroup::Begin(const Launch& launch) {
  if (peers_ != nullptr && peers_->left() >= 0) {
    RETURN_IF_ERROR(Fail(absl::UnavailableError(
        absl::StrCat("rank ", peers_->left(), " has left the group; ", launch.key.ToString(), " would wait for it"))));
  }
  absl::MutexLock lock(&mu_);
  // NCCL may block in a launch after its error.  The group fails soon; its error says more.
  const auto is_known = [this] {
    mu_.AssertReaderHeld();
    return nccl_error_.empty() || !status_.ok();
  };
  AwaitUntil(&mu_, absl::Condition(&is_known), MonotonicNow() + 2 * kFreshWithin);
  RETURN_IF_ERROR(status_);
  SY_CHECK(pending_.empty() || !pending_.back().in_nccl());
  last_ = launch.key;
  pending_.push_back({launch, nullptr});
  return launched_++;
}

void NcclGroup::Watch(CudaEvents::Event done) {
  absl::MutexLock lock(&mu_);
  if (!pending_.empty()) pending_.back().done = std::move(done);
}

void NcclGroup::Captured() {
  absl::MutexLock lock(&mu_);
  if (!pending_.empty()) pending_.back().captured = true;
}

absl::Status NcclGroup::NotLaunched(const absl::Status& why) {
  if (!absl::IsDeadlineExceeded(why)) return FailByNccl(why);
  return Fail(absl::DeadlineExceededError(absl::StrCat(std::string(why.message()), ": ", WhoIsLateNow())));
}

absl::Status NcclGroup::AwaitDone(int64_t number, absl::Time deadline) const {
  absl::MutexLock lock(&mu_);
  const auto finalized = [&] {
    mu_.AssertReaderHeld();
    return completed_ > number || !status_.ok();
  };
  AwaitUntil(&mu_, absl::Condition(&finalized), deadline + kGrace);
  if (completed_ > number) return absl::OkStatus();
  RETURN_IF_ERROR(status_);
  return absl::DeadlineExceededError(
      absl::StrCat("device launch ", number, " of rank ", host_->rank(), " is not done, nor did its watchdog say why"));
}

PeerReport NcclGroup::Report() const {
  absl::MutexLock lock(&mu_);
  PeerReport report{.launched = launched_, .completed = completed_, .last = last_, .pending = {}};
  if (pending_.empty()) return report;
  const Launch& oldest = pending_.front().launch;
  report.pending = oldest.key;
  report.send_bytes = oldest.send_bytes;
  report.recv_bytes = oldest.recv_bytes;
  return report;
}

std::string NcclGroup::WhoIsLateNow() const {
  if (peers_ == nullptr) return "the device does not get on";
  peers_->AwaitFresh(MonotonicNow() + kFreshWithin);
  std::vector<PeerReport> reports = peers_->Latest();
  reports[host_->rank()] = Report();
  return WhoIsLate(reports, host_->rank());
}

void NcclGroup::AwaitPeers(absl::Time deadline) const {
  const int64_t mine = Report().completed;
  while (peers_ != nullptr && peers_->left() < 0 && status().ok() && MonotonicNow() < deadline) {
    const std::vector<PeerReport> reports = peers_->Latest();
    const auto done = [&](const PeerReport& report) { return report.completed >= mine; };
    if (std::all_of(reports.begin(), reports.end(), done)) return;
    absl::SleepFor(kLookPeriod);
  }
}

absl::Status NcclGroup::RemoveDone() {
  for (;;) {
    CudaEvents::Event oldest;
    {
      absl::MutexLock lock(&mu_);
      if (pending_.empty() || pending_.front().in_nccl()) return absl::OkStatus();
      oldest = pending_.front().done;
    }
    const cudaError_t error = oldest == nullptr ? cudaSuccess : cudaEventQuery(oldest.get());
    if (error == cudaErrorNotReady) return absl::OkStatus();
    RETURN_IF_ERROR(CudaStatus("a collective's device", error));
    absl::MutexLock lock(&mu_);
    pending_.pop_front();
    ++completed_;
  }
}

absl::Status NcclGroup::Expired() const {
  OpKey oldest;
  int64_t number = 0;
  size_t behind = 0;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = MonotonicNow();
    bool expired = false;
    for (const Pending& pending : pending_) expired |= !pending.captured && pending.launch.deadline <= now;
    if (!expired) return absl::OkStatus();
    oldest = pending_.front().launch.key;
    number = completed_;
    behind = pending_.size() - 1;
  }
  return absl::DeadlineExceededError(absl::StrCat(
      oldest.ToString(), " (device launch ", number, behind == 0 ? "" : absl::StrCat(", ", behind, " behind it"),
      ") was not done in time on rank ", host_->rank(), ": ", WhoIsLateNow()));
}

bool NcclGroup::Look() {
  absl::Status found = RemoveDone();
  if (found.ok()) found = nccl_->Idle().status();
  if (found.ok()) found = host_->status();
  if (found.ok()) found = Expired();
  if (!found.ok()) (void)FailByNccl(found);
  absl::MutexLock lock(&mu_);
  const auto over = [this] {
    mu_.AssertReaderHeld();
    return ending_ || !status_.ok();
  };
  return !mu_.AwaitWithTimeout(absl::Condition(&over), pending_.empty() ? kIdlePeriod : kLookPeriod);
}

void NcclGroup::WatchUntilTheEnd() {
  (void)cudaSetDevice(device_);
  // Another thread may be capturing a graph, which a query of events must not break.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  while (Look()) {
  }
  absl::ReleasableMutexLock lock(&mu_);
  if (state_ != NcclState::kFailed) return;
  const std::string why(status_.message());
  lock.Release();
  host_->Abort(why);  // Fail, on another thread, may not have come so far
  nccl_->Abort();
  absl::MutexLock again(&mu_);
  MoveTo(&state_, NcclState::kAborted);
}

void NcclGroup::End() {
  bool in_order = false;
  if (watchdog_.joinable()) {
    absl::ReleasableMutexLock lock(&mu_);
    const auto done = [this] {
      mu_.AssertReaderHeld();
      return pending_.empty() || !status_.ok();
    };
    in_order = AwaitUntil(&mu_, absl::Condition(&done), MonotonicNow() + kEndWithin) && status_.ok();
    lock.Release();
    if (!in_order) (void)Fail(absl::UnavailableError("the group was destroyed with collectives under way"));
    if (in_order) AwaitPeers(MonotonicNow() + kEndWithin);
    {
      absl::MutexLock end(&mu_);
      ending_ = true;
    }
    watchdog_.join();
  }
  if (in_order) {
    absl::MutexLock lock(&mu_);
    if (status_.ok()) MoveTo(&state_, NcclState::kClosed);
  }
  if (peers_ != nullptr) peers_->Stop();  // says goodbye, or why
  if (nccl_ != nullptr) nccl_->Abort();
}

}  // namespace switchyard::comm
