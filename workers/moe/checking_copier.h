// Copies as another copier does; compares with checksums what has to be its source's, and keeps why copies failed.
//
// Sums are asked for by one thread; the store's copy thread copies and sums.  Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "workers/moe/expert_checksum.h"
#include "workers/moe/expert_copier.h"
#include "workers/moe/packed_expert.h"

namespace switchyard {

class CheckingCopier : public ExpertCopier {
 public:
  CheckingCopier(std::unique_ptr<ExpertCopier> copier, int64_t expert_bytes)
      : copier_(std::move(copier)), expert_bytes_(expert_bytes) {}

  // The next copy of this expert has to have this sum (expert_checksum.h).
  void Expect(const ExpertId& id, uint64_t checksum);
  // What is in its slot has, when it is looked at again (ExpertStore::Recheck).
  void ExpectAgain(const ExpertId& id, uint64_t checksum);
  // A copy of it begins: neither is asked for, and it has not failed.
  void Forget(const ExpertId& id);
  // Why its last copy failed, or DataLoss: what was looked at again is not its source's; OK if neither.
  absl::Status FailureOf(const ExpertId& id) const;

  absl::Status Copy(const ExpertChunk& chunk) override;
  void Recheck(const ExpertChunk& chunk) override;

 private:
  using Sums = absl::flat_hash_map<ExpertId, uint64_t>;

  absl::Status CheckChunk(const ExpertChunk& chunk, bool again);

  const std::unique_ptr<ExpertCopier> copier_;
  const int64_t expert_bytes_;
  absl::flat_hash_map<ExpertId, ExpertChecksum> sums_;  // of what is under way; the copy thread's
  mutable absl::Mutex mu_;
  Sums expected_ ABSL_GUARDED_BY(mu_), expected_again_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ExpertId, absl::Status> failed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard
