// A copier that compares copies with their sources' checksums and keeps why one failed.
//
// A copy, or a later look at it, is an attempt with a number that its chunks carry: chunks of an earlier attempt may
// still be under way when the next one of the same expert begins, and are ignored.  The store's copy thread copies and
// sums. Thread-safe.
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

  // Begins a copy of this expert and forgets earlier failures.  checksum (expert_checksum.h): the source's; none: the
  // copy is not compared.  Returns the attempt (ExpertStore::StartCopy).
  int64_t BeginCopy(const ExpertId& id, std::optional<uint64_t> checksum);
  // Begins a look at the expert's slot (ExpertStore::Recheck), in place of earlier looks; failures stay.  Returns the
  // attempt.
  int64_t BeginLook(const ExpertId& id, uint64_t checksum);
  // The expert has no slot any more: forgets its failures and ignores what is under way.
  void Forget(const ExpertId& id);

  // Why its last copy failed, or DataLoss if a look found other bytes than its source's; else OK.
  absl::Status FailureOf(const ExpertId& id) const;
  // The experts with a failure.
  std::vector<ExpertId> Failed() const;
  // Whether other bytes than its source's ever arrived.
  bool WasDamaged(const ExpertId& id) const;

  CopyPath path() const override { return copier_->path(); }
  void Start(const ExpertChunk& chunk) override { copier_->Start(chunk); }
  Finished Await() override;
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
