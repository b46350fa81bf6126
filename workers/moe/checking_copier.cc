#include "workers/moe/checking_copier.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {

void CheckingCopier::Expect(const ExpertId& id, uint64_t checksum) {
  absl::MutexLock lock(&mu_);
  expected_[id] = checksum;
}

void CheckingCopier::ExpectAgain(const ExpertId& id, uint64_t checksum) {
  absl::MutexLock lock(&mu_);
  expected_again_[id] = checksum;
}

void CheckingCopier::Forget(const ExpertId& id) {
  absl::MutexLock lock(&mu_);
  expected_.erase(id);
  expected_again_.erase(id);
  failed_.erase(id);
}

absl::Status CheckingCopier::FailureOf(const ExpertId& id) const {
  absl::MutexLock lock(&mu_);
  const auto it = failed_.find(id);
  return it == failed_.end() ? absl::OkStatus() : it->second;
}

absl::Status CheckingCopier::Copy(const ExpertChunk& chunk) {
  absl::Status status = copier_->Copy(chunk);
  if (status.ok()) status = CheckChunk(chunk, /*again=*/false);
  if (status.ok()) return status;
  absl::MutexLock lock(&mu_);
  failed_[chunk.id] = status;
  return status;
}

void CheckingCopier::Recheck(const ExpertChunk& chunk) {
  const absl::Status status = CheckChunk(chunk, /*again=*/true);
  if (status.ok()) return;
  absl::MutexLock lock(&mu_);
  failed_[chunk.id] = status;
}

absl::Status CheckingCopier::CheckChunk(const ExpertChunk& chunk, bool again) {
  std::optional<uint64_t> expected;
  {
    absl::MutexLock lock(&mu_);
    const Sums& sums = again ? expected_again_ : expected_;
    const auto it = sums.find(chunk.id);
    if (it == sums.end()) return absl::OkStatus();
    expected = it->second;
  }
  ASSIGN_OR_RETURN(const char* const arrived_bytes, copier_->ReadBack(chunk));
  if (chunk.offset == 0) sums_[chunk.id] = ExpertChecksum();
  ExpertChecksum& sum = sums_[chunk.id];
  sum.Add(arrived_bytes, chunk.bytes);
  if (chunk.offset + chunk.bytes < expert_bytes_) return absl::OkStatus();
  const uint64_t arrived = sum.value();
  sums_.erase(chunk.id);
  if (arrived == *expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("placed experts: ", chunk.id.ToString(), " arrived with checksum 0x",
                                          absl::Hex(arrived), ", its source has 0x", absl::Hex(*expected)));
}

}  // namespace switchyard
