// The journal of training jobs: one SQLite file, by default CHECKPOINT_ROOT/jobs.sqlite.
//
// When Save returns, the job is on the disk (write-ahead log, synchronous=FULL), whole or not at all.  Only one server
// may open the file at a time.  A row has the server's own counts in columns, and the job as a serialized
// switchyard.v1.Job.  Thread-compatible; blocks on the disk.  Errors are those of sqlite.h; also FailedPrecondition for
// a file of another program or of a newer server, and DataLoss for a job that cannot be read.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/job.h"

namespace switchyard::server {

// Interface of the journal that the job manager writes to; tests replace it by one that fails.
class JobJournal {
 public:
  virtual ~JobJournal() = default;
  // Returns all jobs, by rising sequence.
  virtual absl::StatusOr<std::vector<Job>> Load() = 0;
  // Inserts or replaces the job.  `job.sequence` is its key.
  virtual absl::Status Save(const Job& job) = 0;
  // Forgets the job, and records that its folder is to be removed, both or neither.
  virtual absl::Status Delete(const Job& job) = 0;
  // Returns the ids of deleted jobs whose folders may still be there.
  virtual absl::StatusOr<std::vector<std::string>> DeletedJobs() = 0;
  // The folder of a deleted job is removed.
  virtual absl::Status FolderRemoved(const std::string& id) = 0;
};

class Sqlite;  // sqlite.h

class JobStore final : public JobJournal {
 public:
  static constexpr int kSchemaVersion = 4;

  // Opens or creates the journal, and holds its lock.  Upgrades versions 1 to 3 to version 4, which older servers
  // refuse.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const std::string& path);
  ~JobStore() override;

  absl::StatusOr<std::vector<Job>> Load() override;
  absl::Status Save(const Job& job) override;
  absl::Status Delete(const Job& job) override;
  absl::StatusOr<std::vector<std::string>> DeletedJobs() override;
  absl::Status FolderRemoved(const std::string& id) override;

 private:
  explicit JobStore(Sqlite db);

  const std::unique_ptr<Sqlite> db_;
};

}  // namespace switchyard::server
