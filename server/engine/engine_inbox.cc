#include "server/engine/engine_inbox.h"

#include <utility>

#include "server/clock.h"

namespace switchyard::server {

bool EngineInbox::Post(Command command) {
  absl::MutexLock lock(&mu_);
  if (closed_) return false;
  commands_.push_back(std::move(command));
  return true;
}

void EngineInbox::Stop() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
}

bool EngineInbox::Await(absl::Time deadline, std::vector<Command>* commands) {
  absl::MutexLock lock(&mu_);
  const auto wanted = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !commands_.empty(); };
  mu_.AwaitWithTimeout(absl::Condition(&wanted), deadline - MonotonicNow());
  if (stopping_) return false;
  commands->swap(commands_);
  return true;
}

std::vector<EngineInbox::Command> EngineInbox::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
  return std::exchange(commands_, {});
}

}  // namespace switchyard::server
