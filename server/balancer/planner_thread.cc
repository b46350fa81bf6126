#include "server/balancer/planner_thread.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace switchyard::server {
namespace {

constexpr int kNice = 10;

}  // namespace

PlannerThread::PlannerThread(absl::AnyInvocable<void(absl::StatusOr<PendingMigration>)> done)
    : done_(std::move(done)), thread_([this] { Run(); }) {}

PlannerThread::~PlannerThread() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void PlannerThread::Plan(PlanOrder order) {
  absl::MutexLock lock(&mu_);
  order_ = std::move(order);
}

void PlannerThread::Run() {
  // Of this thread alone; where it is not allowed, planning is as important as serving.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  for (;;) {
    std::optional<PlanOrder> order;
    {
      absl::MutexLock lock(&mu_);
      const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stop_ || order_.has_value(); };
      mu_.Await(absl::Condition(&wanted));
      if (stop_) return;
      order = std::exchange(order_, std::nullopt);
    }
    done_(MakePlan(*order));
  }
}

}  // namespace switchyard::server
