#include "workers/comm/gloo/gloo_communicator.h"

#include <signal.h>

#include <array>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/comm/gloo/gloo_lane.h"
#include "workers/comm/group/cancel_watch.h"
#include "workers/comm/local/local_communicator.h"

namespace switchyard::comm {
namespace {

constexpr absl::Duration kOrphanPeriod = absl::Milliseconds(50);

using Lanes = std::array<std::unique_ptr<GlooLane>, kNumCommClasses>;

// The connections of one rank in one epoch, and why they ended.
class GlooGroup {
 public:
  GlooGroup(const GroupId& group, Lanes lanes)
      : group_(group), lanes_(std::move(lanes)), watch_([this] { FreeOrphansUntilTheEnd(); }) {}
  ~GlooGroup() {
    end_.Notify();
    watch_.join();
  }

  const GroupId& id() const { return group_; }
  bool Has(CommClass comm_class) const { return lanes_[static_cast<int>(comm_class)] != nullptr; }
  // REQUIRES: Has.
  GlooLane& lane(CommClass comm_class) { return *lanes_[static_cast<int>(comm_class)]; }

  absl::Status status() {
    absl::MutexLock lock(&mu_);
    return status_;
  }
  // The first error stays and closes everything.  Any thread.  Returns what stayed.
  absl::Status Fail(const absl::Status& status) {
    absl::Status kept;
    {
      absl::MutexLock lock(&mu_);
      if (status_.ok()) status_ = status;
      kept = status_;
    }
    for (const std::unique_ptr<GlooLane>& lane : lanes_) {
      if (lane != nullptr) lane->Abort();
    }
    return kept;
  }

  absl::Status Finish(GlooLane::Pending* pending, std::vector<Message>* received) {
    const CommClass comm_class = pending->exchange.key.comm_class;
    absl::Status status = lane(comm_class).Finish(pending, received);
    if (status.ok()) return status;
    if (absl::IsDeadlineExceeded(status) && pending->late_peer >= 0) {
      status = absl::DeadlineExceededError(absl::StrCat(std::string(status.message()), Instead(*pending)));
    }
    return Fail(status);
  }

 private:
  // What a late peer launched in another class, if anything: the likely reason.
  std::string Instead(const GlooLane::Pending& pending) {
    for (int c = 0; c < kNumCommClasses; ++c) {
      if (lanes_[c] == nullptr || c == static_cast<int>(pending.exchange.key.comm_class)) continue;
      const std::optional<OpKey> other = lanes_[c]->Unclaimed(pending.late_peer);
      if (other) return absl::StrCat("; it launched ", other->ToString(), ", which rank ", group_.rank, " did not");
    }
    return "";
  }

  void FreeOrphansUntilTheEnd() {
    while (!end_.WaitForNotificationWithTimeout(kOrphanPeriod)) {
      for (const std::unique_ptr<GlooLane>& lane : lanes_) {
        if (lane != nullptr) lane->FreeOrphans();
      }
    }
  }

  const GroupId group_;
  const Lanes lanes_;  // null: not connected
  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  absl::Notification end_;
  std::thread watch_;
};

class GlooWork : public Work {
 public:
  GlooWork(std::shared_ptr<GlooGroup> group, GlooLane::Pending pending)
      : group_(std::move(group)), pending_(std::move(pending)) {
    received_.resize(group_->id().world);
    received_[group_->id().rank] = std::move(pending_.exchange.out[group_->id().rank]);
  }
  ~GlooWork() override {
    if (!waited_) {
      (void)group_->Fail(
          absl::UnavailableError(absl::StrCat(pending_.exchange.key.ToString(), " was dropped unfinished")));
    }
  }

  absl::Status Wait() override {
    if (waited_) return status_;
    waited_ = true;
    status_ = group_->Finish(&pending_, &received_);
    return status_;
  }

 private:
  const std::shared_ptr<GlooGroup> group_;  // shared with the communicator; outlives pending_
  GlooLane::Pending pending_;
  bool waited_ = false;
  absl::Status status_;
};

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(std::shared_ptr<MessagePool> pool, std::shared_ptr<GlooGroup> group)
      : Communicator(group->id(), std::move(pool)), group_(std::move(group)) {}

  void Abort(absl::string_view reason) override {
    (void)group_->Fail(absl::UnavailableError(absl::StrCat("aborted: ", reason)));
  }
  absl::Status status() const override { return group_->status(); }

  WorkOr StartExchange(Exchange exchange) override {
    RETURN_IF_ERROR(group_->status());
    if (!group_->Has(exchange.key.comm_class)) {
      return absl::InvalidArgumentError(absl::StrCat(exchange.key.ToString(), " in a group of control_only"));
    }
    GlooLane::Pending pending;
    pending.exchange = std::move(exchange);
    const absl::Status started = group_->lane(pending.exchange.key.comm_class).Start(&pending);
    if (!started.ok()) return group_->Fail(started);
    return std::make_unique<GlooWork>(group_, std::move(pending));
  }

 private:
  const std::shared_ptr<GlooGroup> group_;  // shared with works under way
};

// All classes at once: Gloo spends most of a connection's making in waits for its I/O thread.
absl::StatusOr<Lanes> ConnectLanes(const GroupOptions& options, const GroupId& id, const std::string& prefix,
                                   RendezvousStore* store, const std::shared_ptr<MessagePool>& pool) {
  std::array<absl::StatusOr<std::unique_ptr<GlooLane>>, kNumCommClasses> connected;
  std::vector<std::thread> threads;
  for (int c = 0; c < kNumCommClasses; ++c) {
    if (options.control_only && static_cast<CommClass>(c) != CommClass::kControl) {
      connected[c] = nullptr;
      continue;
    }
    threads.emplace_back([&, c] {
      const auto comm_class = static_cast<CommClass>(c);
      connected[c] = GlooLane::Connect({.group = id,
                                        .comm_class = comm_class,
                                        .address = options.address,
                                        .key_prefix = absl::StrCat(prefix, CommClassName(comm_class), "/"),
                                        .deadline = options.deadline},
                                       store, pool);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Lanes lanes;
  for (int c = 0; c < kNumCommClasses; ++c) {
    ASSIGN_OR_RETURN(lanes[c], std::move(connected[c]));
  }
  return lanes;
}

// The first frames on every connection: is the other end who it should be?
absl::Status ShakeHands(const GroupOptions& options, GlooGroup* group) {
  for (int c = 0; c < kNumCommClasses; ++c) {
    if (!group->Has(static_cast<CommClass>(c))) continue;
    GlooLane::Pending pending;
    Communicator::Exchange& hello = pending.exchange;
    hello.key = {.op = CommOp::kHello, .comm_class = static_cast<CommClass>(c), .sequence = -1, .bytes = 0};
    hello.deadline = options.deadline;
    hello.out.resize(options.world);
    hello.send_to.assign(options.world, 1);
    hello.send_to[options.rank] = 0;
    hello.recv_from = hello.send_to;
    std::vector<Message> received(options.world);
    absl::Status status = group->lane(hello.key.comm_class).Start(&pending);
    if (status.ok()) status = group->Finish(&pending, &received);
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> FormGlooGroup(const GroupOptions& options, RendezvousStore* store) {
  RETURN_IF_ERROR(CheckGroupOptions(options));
  if (options.world == 1) return MakeSoloCommunicator(options.epoch);
  // Gloo writes to sockets without MSG_NOSIGNAL: a peer's death must be an error, not ours.
  struct sigaction action;
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);

  RETURN_IF_ERROR(CallTheRoll(options, store));
  const GroupId id = IdOfGroup(options);
  std::shared_ptr<MessagePool> pool = MessagePool::Create();
  ASSIGN_OR_RETURN(Lanes lanes, ConnectLanes(options, id, GroupPrefix(options), store, pool));
  auto group = std::make_shared<GlooGroup>(id, std::move(lanes));
  {
    const CancelWatch watch(store, [&group](const absl::Status& cancelled) { (void)group->Fail(cancelled); });
    RETURN_IF_ERROR(ShakeHands(options, group.get()));
  }
  return std::make_unique<GlooCommunicator>(std::move(pool), std::move(group));
}

}  // namespace switchyard::comm
