#include "server/constraint/mask_pool.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace switchyard::server {

MaskPool::~MaskPool() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void MaskPool::Start(batching::MaskRequest request) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  Queue& queue = waiting_[request.key.output > 0 ? 0 : 1];
  queue.push_back(std::move(request));
  if (queue.size() >= look_at_) {
    std::erase_if(queue, [](const batching::MaskRequest& each) { return each.wanted.expired(); });
    look_at_ = std::max(kLookAt, 2 * std::max(waiting_[0].size(), waiting_[1].size()));
  }
  if (threads_.size() < kThreads) threads_.emplace_back([this] { Run(); });
}

size_t MaskPool::num_waiting() const {
  absl::MutexLock lock(&mu_);
  return waiting_[0].size() + waiting_[1].size();
}

std::pair<MaskPool::Queue*, size_t> MaskPool::Find() {
  for (Queue& queue : waiting_) {
    for (size_t i = 0; i < queue.size(); ++i) {
      if (!busy_.contains(queue[i].task.twin)) return {&queue, i};
    }
  }
  return {nullptr, 0};
}

batching::MaskRequest MaskPool::Next() {
  const auto [queue, index] = Find();
  batching::MaskRequest request = std::move((*queue)[index]);
  queue->erase(queue->begin() + static_cast<std::ptrdiff_t>(index));
  busy_.insert(request.task.twin);
  return request;
}

void MaskPool::Run() {
  for (;;) {
    batching::MaskRequest request;
    {
      const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || Find().first != nullptr; };
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&ready));  // until there is work, or the end
      if (stopping_) return;
      request = Next();
    }
    const bool is_wanted = !request.wanted.expired();
    const absl::Time begin = absl::Now();
    batching::MaskAnswer answer{.key = request.key, .mask = grammar::MaskPtr(), .work_left = 0};
    if (is_wanted) {
      answer.mask = request.task.Run();
      answer.work_left = request.task.work;
    }
    const absl::Duration took = absl::Now() - begin;
    {
      absl::MutexLock lock(&mu_);
      busy_.erase(request.task.twin);
    }
    request = {};  // may be the last owner of the constraint
    if (is_wanted) done_(std::move(answer), took);
  }
}

}  // namespace switchyard::server
