#include "workers/comm/local/local_communicator.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/base/await.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/core/frame_header.h"

namespace switchyard::comm {
namespace {

class DoneWork : public Work {
 public:
  explicit DoneWork(std::vector<Message> received) { received_ = std::move(received); }
  absl::Status Wait() override { return absl::OkStatus(); }
};

class SoloCommunicator : public Communicator {
 public:
  explicit SoloCommunicator(int64_t epoch) : Communicator({.epoch = epoch}, MessagePool::Create()) {}

  void Abort(absl::string_view reason) override {
    absl::MutexLock lock(&mu_);
    if (status_.ok()) status_ = absl::UnavailableError(reason);
  }
  absl::Status status() const override {
    absl::MutexLock lock(&mu_);
    return status_;
  }
  WorkOr StartExchange(Exchange exchange) override { return std::make_unique<DoneWork>(std::move(exchange.out)); }

 private:
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// The mailbox of a group of threads.  Thread-safe.
class LocalHub {
 public:
  // class, split, one way?, sequence, source, destination
  using FrameId = std::tuple<int, uint32_t, bool, int64_t, int, int>;
  struct Frame {
    FrameHeader header;
    Message message;
  };

  explicit LocalHub(int world) : status_(world) {}

  void Put(const FrameId& id, Frame frame) {
    absl::MutexLock lock(&mu_);
    frames_[id] = std::move(frame);
  }

  // The frame, or why it will not come.
  absl::StatusOr<Frame> Take(const FrameId& id, const Communicator::Exchange& exchange) {
    const int source = std::get<4>(id);
    const int me = std::get<5>(id);
    absl::MutexLock lock(&mu_);
    const auto finalized = [&] {
      mu_.AssertHeld();
      return !status_[me].ok() || frames_.count(id) > 0 || !status_[source].ok();
    };
    const bool in_time = AwaitUntil(&mu_, absl::Condition(&finalized), exchange.deadline);
    if (!status_[me].ok()) return status_[me];
    const auto it = frames_.find(id);
    if (it != frames_.end()) {
      Frame frame = std::move(it->second);
      frames_.erase(it);
      return frame;
    }
    if (in_time) {
      return absl::UnavailableError(absl::StrCat("rank ", source, " is gone during ", exchange.key.ToString(), ": ",
                                                 std::string(status_[source].message())));
    }
    return absl::DeadlineExceededError(
        absl::StrCat(Communicator::NothingFrom(source, exchange), InsteadLocked(source, me)));
  }

  // Blocks until all of the exchange's frames to `me` are here, at most until then, and returns the ranks whose are
  // not.  None: they are, or one will not come.
  std::vector<int> AwaitAll(const Communicator::Exchange& exchange, int me, absl::Time until);
  // Keeps the first error of a rank.
  void Fail(int rank, const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    if (status_[rank].ok()) status_[rank] = status;
  }
  absl::Status status(int rank) {
    absl::MutexLock lock(&mu_);
    return status_[rank];
  }

 private:
  // A call that a late rank launched instead, if any: the likely reason.
  std::string InsteadLocked(int source, int me) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const auto& [id, frame] : frames_) {
      if (std::get<4>(id) != source || std::get<5>(id) != me) continue;
      return absl::StrCat("; it launched ", frame.header.key().ToString(), ", which rank ", me, " did not");
    }
    return "";
  }

  absl::Mutex mu_;
  std::map<FrameId, Frame> frames_ ABSL_GUARDED_BY(mu_);
  std::vector<absl::Status> status_ ABSL_GUARDED_BY(mu_);  // [R] why a rank's part has ended
};

LocalHub::FrameId IdOf(const OpKey& key, uint32_t split, int source, int destination) {
  return {static_cast<int>(key.comm_class), split, key.op == CommOp::kSend, key.sequence, source, destination};
}

std::vector<int> LocalHub::AwaitAll(const Communicator::Exchange& exchange, int me, absl::Time until) {
  std::vector<int> missing;
  absl::MutexLock lock(&mu_);
  const auto over = [&] {
    mu_.AssertHeld();
    missing.clear();
    bool ended = !status_[me].ok();
    for (int source = 0; source < static_cast<int>(status_.size()); ++source) {
      if (exchange.recv_from[source] == 0) continue;
      if (frames_.count(IdOf(exchange.key, exchange.split, source, me)) > 0) continue;
      missing.push_back(source);
      ended |= !status_[source].ok();
    }
    if (ended) missing.clear();
    return missing.empty();
  };
  AwaitUntil(&mu_, absl::Condition(&over), until);
  return missing;
}

class LocalWork : public OnceWork {
 public:
  LocalWork(std::shared_ptr<LocalHub> hub, const GroupId& group, Communicator::Exchange exchange)
      : hub_(std::move(hub)), group_(group), exchange_(std::move(exchange)) {
    received_.resize(group_.world);
    received_[group_.rank] = std::move(exchange_.out[group_.rank]);
  }
  ~LocalWork() override {
    if (waited()) return;
    hub_->Fail(group_.rank, absl::UnavailableError(absl::StrCat(exchange_.key.ToString(), " was dropped unfinished")));
  }
  std::vector<int> AwaitMessages(absl::Time until) override {
    if (waited()) return {};
    return hub_->AwaitAll(exchange_, group_.rank, until);
  }

 private:
  absl::Status Finish() override {
    const absl::Status status = Receive();
    if (!status.ok()) hub_->Fail(group_.rank, status);
    return status;
  }

  absl::Status Receive() {
    for (int source = 0; source < group_.world; ++source) {
      if (exchange_.recv_from[source] == 0) continue;
      const LocalHub::FrameId id = IdOf(exchange_.key, exchange_.split, source, group_.rank);
      ASSIGN_OR_RETURN(LocalHub::Frame frame, hub_->Take(id, exchange_));
      RETURN_IF_ERROR(CheckFrameHeader(frame.header, group_, source, exchange_.key, exchange_.split));
      received_[source] = std::move(frame.message);
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<LocalHub> hub_;  // shared with the group's communicators
  const GroupId group_;
  Communicator::Exchange exchange_;
};

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(const GroupId& group, std::shared_ptr<MessagePool> pool, std::shared_ptr<LocalHub> hub)
      : Communicator(group, std::move(pool)), hub_(std::move(hub)) {}
  ~LocalCommunicator() override { hub_->Fail(rank(), absl::UnavailableError("it left the group")); }

  void Abort(absl::string_view reason) override {
    hub_->Fail(rank(), absl::UnavailableError(absl::StrCat("aborted: ", reason)));
  }
  absl::Status status() const override { return hub_->status(rank()); }

  WorkOr StartExchange(Exchange exchange) override {
    RETURN_IF_ERROR(status());
    for (int peer = 0; peer < world(); ++peer) {
      if (exchange.send_to[peer] == 0) continue;
      const FrameHeader header = MakeFrameHeader(group(), exchange.key, exchange.split, exchange.out[peer].bytes());
      hub_->Put(IdOf(exchange.key, exchange.split, rank(), peer), {header, std::move(exchange.out[peer])});
    }
    return std::make_unique<LocalWork>(hub_, group(), std::move(exchange));
  }

 private:
  const std::shared_ptr<LocalHub> hub_;  // shared by the ranks of the group and their works
};

}  // namespace

std::unique_ptr<Communicator> MakeSoloCommunicator(int64_t epoch) { return std::make_unique<SoloCommunicator>(epoch); }

std::vector<std::unique_ptr<Communicator>> MakeLocalGroup(int world, int64_t epoch) {
  SY_CHECK_GE(world, 1);
  const std::shared_ptr<MessagePool> pool = MessagePool::Create();
  const auto hub = std::make_shared<LocalHub>(world);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < world; ++r) {
    const GroupId group{.epoch = epoch, .rank = r, .world = world};
    ranks.push_back(std::make_unique<LocalCommunicator>(group, pool, hub));
  }
  return ranks;
}

}  // namespace switchyard::comm
