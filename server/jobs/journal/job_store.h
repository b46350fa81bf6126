// The journal of training jobs: one SQLite file, by default CHECKPOINT_ROOT/jobs.sqlite.
//
// When Save returns the job is on the disk (write-ahead log, synchronous=FULL), whole or not at all.  One server at a
// time: another is refused.  A row has the server's own counts in columns, and the job as a serialized
// switchyard.v1.Job.  Thread-compatible; blocks on the disk.
// Errors are those of sqlite.h; FailedPrecondition also for a file of another program or of a newer server, DataLoss
// for a job that cannot be read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/job.h"

namespace switchyard::server {

// What the manager needs of a journal; tests put one in its place that fails.
class JobJournal {
 public:
  virtual ~JobJournal() = default;
  // All jobs, by rising sequence.
  virtual absl::StatusOr<std::vector<Job>> Load() = 0;
  // Writes the job as it is, whether it is there or not.  `job.sequence` is its key.
  virtual absl::Status Save(const Job& job) = 0;
  virtual absl::Status Forget(const Job& job) = 0;
};

class Sqlite;  // sqlite.h

class JobStore final : public JobJournal {
 public:
  static constexpr int kSchemaVersion = 2;

  // Opens the journal, or makes it; holds its lock.  Version 1 becomes version 2, which older servers refuse.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const std::string& path);
  ~JobStore() override;

  absl::StatusOr<std::vector<Job>> Load() override;
  absl::Status Save(const Job& job) override;
  absl::Status Forget(const Job& job) override;

 private:
  explicit JobStore(Sqlite db);

  const std::unique_ptr<Sqlite> db_;
};

}  // namespace switchyard::server
