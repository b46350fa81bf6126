#include "workers/comm/local/work_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::comm {

class WorkThread::CarriedWork : public OnceWork {
 public:
  CarriedWork(WorkThread* thread, const OpKey& key, std::unique_ptr<Work> work)
      : thread_(thread), key_(key), work_(std::move(work)) {}
  // The thread may be using the caller's memory.
  ~CarriedWork() override {
    if (waited()) return;
    thread_->comm_->Abort(absl::StrCat(key_.ToString(), " was dropped without a Wait"));
    (void)Wait();
  }

  // On the thread.
  void Run() {
    const absl::Status result = work_->Wait();
    absl::MutexLock lock(&thread_->mu_);
    result_ = result;
    done_ = true;
  }

 private:
  // (The work ends by its own deadlines.)
  absl::Status Finish() override {
    absl::MutexLock lock(&thread_->mu_);
    thread_->mu_.Await(absl::Condition(&done_));
    received_ = std::move(work_->received());
    return result_;
  }

  WorkThread* const thread_;
  const OpKey key_;
  const std::unique_ptr<Work> work_;  // the thread's until done_
  absl::Status result_;               // guarded by the thread's lock, as done_
  bool done_ = false;
};

WorkThread::~WorkThread() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mu_);
    SY_CHECK(queue_.empty());
    stop_ = true;
  }
  thread_.join();
}

std::unique_ptr<Work> WorkThread::Carry(const OpKey& key, std::unique_ptr<Work> work) {
  auto carried = std::make_unique<CarriedWork>(this, key, std::move(work));
  {
    absl::MutexLock lock(&mu_);
    queue_.push_back(carried.get());
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  return carried;
}

void WorkThread::Run() {
  for (;;) {
    CarriedWork* next = nullptr;
    {
      absl::MutexLock lock(&mu_);
      const auto is_called = [this] {
        mu_.AssertReaderHeld();
        return stop_ || !queue_.empty();
      };
      mu_.Await(absl::Condition(&is_called));
      if (stop_) return;
      next = queue_.front();
      queue_.pop_front();
    }
    next->Run();
  }
}

}  // namespace switchyard::comm
