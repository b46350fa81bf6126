// Copies as another copier does; compares with checksums what has to be its source's, and keeps why that failed.
//
// A copy or a look at what was copied is an attempt, with a number that its chunks bear: chunks of an attempt that is
// over may still be under way when the next one of the same expert begins, and what they find is not heard.  One thread
// asks; the store's copy thread copies and sums.  Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "workers/moe/experts/expert_checksum.h"
#include "workers/moe/experts/expert_copier.h"
#include "workers/moe/experts/packed_expert.h"

namespace switchyard::moe {

class CheckingCopier : public ExpertCopier {
 public:
  CheckingCopier(std::unique_ptr<ExpertCopier> copier, int64_t expert_bytes)
      : copier_(std::move(copier)), expert_bytes_(expert_bytes) {}

  // A copy of this expert begins; what was known of those before is forgotten.  checksum (expert_checksum.h): what it
  // has to have; none: it is not looked at.  Returns its attempt (ExpertStore::StartCopy).
  int64_t BeginCopy(const ExpertId& id, std::optional<uint64_t> checksum);
  // What is in its slot has to have that, when it is looked at (ExpertStore::Recheck): instead of looks before; what
  // has failed stays so.  Returns the attempt.
  int64_t BeginLook(const ExpertId& id, uint64_t checksum);
  // It has no slot any more: it has not failed, and what is under way is not heard.
  void Forget(const ExpertId& id);

  // Why its last copy failed, or DataLoss: what was looked at is not its source's; OK if neither.
  absl::Status FailureOf(const ExpertId& id) const;
  // All that FailureOf has something of.
  std::vector<ExpertId> Failed() const;
  // Whether bytes that arrived were ever others than its source's.
  bool WasDamaged(const ExpertId& id) const;

  absl::Status Copy(const ExpertChunk& chunk) override;
  void Recheck(const ExpertChunk& chunk) override;

 private:
  struct Attempt {
    int64_t number = 0;  // 0 = none
    std::optional<uint64_t> checksum;
  };
  struct Watched {
    Attempt copy, look;
  };
  struct Sum {
    int64_t attempt = 0;
    ExpertChecksum sum;
  };

  absl::Status CheckChunk(const ExpertChunk& chunk);
  // Null: of neither attempt.
  const Attempt* AttemptOf(const ExpertChunk& chunk) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void NoteFailure(const ExpertChunk& chunk, const absl::Status& status);

  const std::unique_ptr<ExpertCopier> copier_;
  const int64_t expert_bytes_;
  absl::flat_hash_map<ExpertId, Sum> sums_;  // of what is under way; the copy thread's
  mutable absl::Mutex mu_;
  int64_t num_attempts_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ExpertId, Watched> watched_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ExpertId, absl::Status> failed_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<ExpertId> damaged_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::moe
