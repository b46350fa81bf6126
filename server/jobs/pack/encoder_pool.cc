#include "server/jobs/pack/encoder_pool.h"

#include <sys/resource.h>

#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr int kNice = 10;

}  // namespace

absl::Status EncodeBlock(const DocumentEncoder& encoder, const std::function<bool()>& cancelled, EncodeTask* task) {
  return VisitLines(task->name, task->block, task->max_line_bytes, [&](absl::string_view line) -> absl::Status {
    ASSIGN_OR_RETURN(const Document document, ParseDocument(line));
    RETURN_IF_ERROR(CheckKind(document, task->pairs));
    return encoder.Append(document, cancelled, &task->tokens);
  });
}

EncoderPool::EncoderPool(const DocumentEncoder& encoder, int num_threads) : encoder_(encoder) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

EncoderPool::~EncoderPool() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void EncoderPool::Post(EncodeTask* task) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back(task);
}

bool EncoderPool::Wait(const EncodeTask* task, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&task->done), timeout);
}

void EncoderPool::Run() {
  setpriority(PRIO_PROCESS, 0, kNice);  // for this thread only
  const auto cancelled = [this] { return stopping_.load(); };
  const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !tasks_.empty(); };
  for (;;) {
    EncodeTask* task = nullptr;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&wanted));
      if (stopping_) return;
      task = tasks_.front();
      tasks_.pop_front();
    }
    absl::Status status = EncodeBlock(encoder_, cancelled, task);
    absl::MutexLock lock(&mu_);
    task->status = std::move(status);
    task->done = true;
  }
}

}  // namespace switchyard::server
