#include "workers/moe/experts/checking_copier.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {

int64_t CheckingCopier::BeginCopy(const ExpertId& id, std::optional<uint64_t> checksum) {
  absl::MutexLock lock(&mu_);
  failed_.erase(id);
  watched_[id] = {.copy = {++num_attempts_, checksum}, .look = {}};
  return num_attempts_;
}

int64_t CheckingCopier::BeginLook(const ExpertId& id, uint64_t checksum) {
  absl::MutexLock lock(&mu_);
  watched_[id].look = {++num_attempts_, checksum};
  return num_attempts_;
}

void CheckingCopier::Forget(const ExpertId& id) {
  absl::MutexLock lock(&mu_);
  watched_.erase(id);
  failed_.erase(id);
}

absl::Status CheckingCopier::FailureOf(const ExpertId& id) const {
  absl::MutexLock lock(&mu_);
  const auto it = failed_.find(id);
  return it == failed_.end() ? absl::OkStatus() : it->second;
}

std::vector<ExpertId> CheckingCopier::Failed() const {
  absl::MutexLock lock(&mu_);
  std::vector<ExpertId> ids;
  for (const auto& [id, status] : failed_) ids.push_back(id);
  return ids;
}

bool CheckingCopier::WasDamaged(const ExpertId& id) const {
  absl::MutexLock lock(&mu_);
  return damaged_.contains(id);
}

ExpertCopier::Finished CheckingCopier::Await() {
  Finished finished = copier_->Await();
  if (finished.status.ok()) finished.status = CheckChunk(finished.chunk);
  NoteFailure(finished.chunk, finished.status);
  return finished;
}

void CheckingCopier::Recheck(const ExpertChunk& chunk) { NoteFailure(chunk, CheckChunk(chunk)); }

const CheckingCopier::Attempt* CheckingCopier::AttemptOf(const ExpertChunk& chunk) const {
  const auto it = watched_.find(chunk.id);
  if (it == watched_.end()) return nullptr;
  if (it->second.copy.number == chunk.attempt) return &it->second.copy;
  return it->second.look.number == chunk.attempt ? &it->second.look : nullptr;
}

void CheckingCopier::NoteFailure(const ExpertChunk& chunk, const absl::Status& status) {
  if (status.ok()) return;
  absl::MutexLock lock(&mu_);
  const Attempt* const attempt = AttemptOf(chunk);
  if (attempt == nullptr) return;  // the attempt is over
  failed_[chunk.id] = status;
  if (attempt->checksum.has_value() && absl::IsDataLoss(status)) damaged_.insert(chunk.id);
}

absl::Status CheckingCopier::CheckChunk(const ExpertChunk& chunk) {
  std::optional<uint64_t> expected;
  {
    absl::MutexLock lock(&mu_);
    if (const Attempt* const attempt = AttemptOf(chunk); attempt != nullptr) expected = attempt->checksum;
  }
  if (!expected.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const char* const arrived_bytes, copier_->ReadBack(chunk));
  Sum& sum = sums_[chunk.id];
  if (chunk.offset == 0) sum = {.attempt = chunk.attempt, .sum = {}};
  // An attempt that is compared is summed from its first byte.
  if (sum.attempt != chunk.attempt) return absl::OkStatus();
  sum.sum.Add(arrived_bytes, chunk.bytes);
  if (chunk.offset + chunk.bytes < expert_bytes_) return absl::OkStatus();
  const uint64_t arrived = sum.sum.value();
  sums_.erase(chunk.id);
  if (arrived == *expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("placed experts: ", chunk.id.ToString(), " arrived with checksum 0x",
                                          absl::Hex(arrived), ", its source has 0x", absl::Hex(*expected)));
}

}  // namespace switchyard::moe
