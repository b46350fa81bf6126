#include "workers/train/step/activation_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::train {

absl::StatusOr<std::unique_ptr<ActivationFile>> ActivationFile::Create(const OpenStateFileFn& open) {
  ASSIGN_OR_RETURN(std::unique_ptr<StateFile> file, open(0));
  return std::unique_ptr<ActivationFile>(new ActivationFile(std::move(file)));
}

ActivationFile::ActivationFile(std::unique_ptr<StateFile> file) : file_(std::move(file)), thread_([this] { Run(); }) {}

ActivationFile::~ActivationFile() {
  {
    const absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void ActivationFile::StartSave(const moe::OffloadKey& key, absl::Span<const char> from) {
  Place& place = places_[key];
  const auto bytes = static_cast<int64_t>(from.size());
  if (bytes > place.capacity) {
    // Rows of experts change from step to step: some room, so that few places are left behind.
    constexpr int64_t kPage = 4096;
    place = {.at = counters_.file_bytes, .capacity = (bytes + bytes / 4 + kPage - 1) / kPage * kPage};
    counters_.file_bytes += place.capacity;
  }
  place.bytes = bytes;
  counters_.saved_bytes += bytes;
  Start(key, {.at = place.at, .saves = true, .from = from, .to = {}, .done = from.empty(), .status = {}});
}

void ActivationFile::StartRestore(const moe::OffloadKey& key, absl::Span<char> to) {
  const auto place = places_.find(key);
  SY_CHECK(place != places_.end());
  SY_CHECK_EQ(static_cast<int64_t>(to.size()), place->second.bytes);

  Start(key, {.at = place->second.at, .saves = false, .from = {}, .to = to, .done = to.empty(), .status = {}});
}

void ActivationFile::Start(const moe::OffloadKey& key, Copy copy) {
  auto started = std::make_shared<Copy>(std::move(copy));
  const absl::MutexLock lock(&mu_);
  copies_[key] = started;
  if (!started->done) queue_.push_back(std::move(started));
}

absl::Status ActivationFile::Finish(const moe::OffloadKey& key) {
  const absl::Time begin = MonotonicNow();
  const absl::MutexLock lock(&mu_);
  const auto it = copies_.find(key);
  if (it == copies_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("offload: no copy of MoE layer ", key.layer, ", ",
                                                   pipeline::BufferKindName(key.buffer), " of chunk ", key.chunk,
                                                   " was started"));
  }
  const std::shared_ptr<Copy> copy = it->second;
  copies_.erase(it);
  mu_.Await(absl::Condition(&copy->done));
  counters_.wait_seconds += absl::ToDoubleSeconds(MonotonicNow() - begin);
  return copy->status;
}

void ActivationFile::Drain() {
  const absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &ActivationFile::IsIdle));
  copies_.clear();
}

void ActivationFile::Run() {
  absl::MutexLock lock(&mu_);
  for (;;) {
    mu_.Await(absl::Condition(this, &ActivationFile::HasWork));
    if (stopping_) return;
    const std::shared_ptr<Copy> copy = std::move(queue_.front());
    queue_.pop_front();
    copies_now_ = true;
    mu_.Unlock();
    absl::Status status = copy->saves ? file_->Write(copy->at, absl::string_view(copy->from.data(), copy->from.size()))
                                      : file_->Read(copy->at, copy->to);
    mu_.Lock();
    copy->status = std::move(status);
    copy->done = true;
    copies_now_ = false;
  }
}

}  // namespace switchyard::train
