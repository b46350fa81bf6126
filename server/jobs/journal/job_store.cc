#include "server/jobs/journal/job_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/unknown_field_set.h"
#include "scheduler/base/status_macros.h"
#include "server/jobs/api/job_convert.h"
#include "server/jobs/journal/sqlite.h"

namespace switchyard::server {
namespace {

constexpr int64_t kApplicationId = 0x53594a42;  // "SYJB"

constexpr char kSchema[] = R"(
  CREATE TABLE jobs(
    sequence INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    request_id TEXT UNIQUE,           -- RequestKey; NULL: none was given
    queued INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    best_step INTEGER NOT NULL,
    ran_ms INTEGER NOT NULL,
    files_ready INTEGER NOT NULL,
    job BLOB NOT NULL,                -- switchyard.v1.Job
    full_since_ms INTEGER NOT NULL DEFAULT 0,
    fork_digest BLOB NOT NULL DEFAULT x''
  ) STRICT;
  CREATE TABLE deleted_jobs(id TEXT PRIMARY KEY) STRICT;  -- their folders may still be there
  PRAGMA application_id=0x53594a42;
  PRAGMA user_version=4;
)";
constexpr char kFromVersion1[] = "ALTER TABLE jobs ADD COLUMN full_since_ms INTEGER NOT NULL DEFAULT 0";
// A server of version 2 would also drop Job.origin, without which a fork's checkpoint is of no use.
constexpr char kFromVersion2[] = R"(
  ALTER TABLE jobs ADD COLUMN fork_digest BLOB NOT NULL DEFAULT x'';
)";
// A server of version 3 would also drop JobSpec.evaluation_names, and look for other packed files.
constexpr char kFromVersion3[] = R"(
  CREATE TABLE deleted_jobs(id TEXT PRIMARY KEY) STRICT;
  PRAGMA user_version=4;
)";
constexpr char kSave[] =
    "INSERT INTO jobs(sequence, id, request_id, queued, losses, best_step, ran_ms, files_ready, job, "
    "full_since_ms, fork_digest) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(sequence) DO UPDATE SET "
    "queued=excluded.queued, "
    "losses=excluded.losses, best_step=excluded.best_step, ran_ms=excluded.ran_ms, files_ready=excluded.files_ready, "
    "job=excluded.job, full_since_ms=excluded.full_since_ms";
constexpr char kLoad[] =
    "SELECT sequence, queued, losses, best_step, ran_ms, files_ready, job, full_since_ms, fork_digest FROM jobs "
    "ORDER BY sequence";

absl::StatusOr<int64_t> ValueOf(const Sqlite& db, const char* sql) {
  SqliteStatement statement(db, sql);
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

absl::Status CheckWhole(const Sqlite& db) {
  SqliteStatement check(db, "PRAGMA quick_check(1)");
  RETURN_IF_ERROR(check.Step().status());
  const std::string verdict = check.Bytes(0);
  if (verdict == "ok") return absl::OkStatus();
  return db.Error(SQLITE_CORRUPT, verdict);
}

// Checks that the file is a journal, or still empty.
absl::Status CheckSchema(Sqlite* db) {
  int64_t application = 0, version = 0, tables = 0;
  ASSIGN_OR_RETURN(application, ValueOf(*db, "PRAGMA application_id"));
  ASSIGN_OR_RETURN(version, ValueOf(*db, "PRAGMA user_version"));
  ASSIGN_OR_RETURN(tables, ValueOf(*db, "SELECT count(*) FROM sqlite_schema"));
  if (tables == 0 && application == 0) return db->Run(kSchema);
  if (application != kApplicationId) {
    return absl::FailedPreconditionError(absl::StrCat(db->name(), ": is no journal of training jobs"));
  }
  if (version >= 1 && version < JobStore::kSchemaVersion) {
    RETURN_IF_ERROR(CheckWhole(*db));
    if (version == 1) RETURN_IF_ERROR(db->Run(kFromVersion1));
    if (version <= 2) RETURN_IF_ERROR(db->Run(kFromVersion2));
    return db->Run(kFromVersion3);
  }
  if (version != JobStore::kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(db->name(), ": schema version ", version, ", this server knows ",
                                                      JobStore::kSchemaVersion, "; a newer server wrote it"));
  }
  return CheckWhole(*db);
}

}  // namespace

JobStore::JobStore(Sqlite db) : db_(std::make_unique<Sqlite>(std::move(db))) {}
JobStore::~JobStore() = default;

// Jobs had a mode of communication once (field 1), their granularity and packing could be "mode", and granularities
// "model" and "profile" chose by other means what auto chooses now.
void TakeOutMode(v1::CommunicationSpec* spec) {
  std::string mode;
  google::protobuf::UnknownFieldSet* const unknown = spec->GetReflection()->MutableUnknownFields(spec);
  for (int i = 0; i < unknown->field_count(); ++i) {
    const google::protobuf::UnknownField& field = unknown->field(i);
    if (field.number() == 1 && field.type() == field.TYPE_LENGTH_DELIMITED) mode = field.length_delimited();
  }
  unknown->DeleteByNumber(1);
  const bool cut = mode == "pipelining" || mode == "full";
  const std::string granularity = spec->granularity();
  if (granularity == "mode") spec->set_granularity(cut ? "auto" : "1");
  if (granularity == "model" || granularity == "profile") spec->set_granularity("auto");
  if (spec->expert_packing() == "mode") spec->set_expert_packing(mode == "full" ? "trials" : "1");
}

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const std::string& path) {
  ASSIGN_OR_RETURN(Sqlite db, Sqlite::Open(path));
  // Exclusive: the lock is taken with the first access and held until the file is closed or the process ends.
  RETURN_IF_ERROR(
      db.Run("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
             "BEGIN EXCLUSIVE;"));
  RETURN_IF_ERROR(CheckSchema(&db));
  RETURN_IF_ERROR(db.Run("COMMIT"));
  return std::unique_ptr<JobStore>(new JobStore(std::move(db)));
}

absl::StatusOr<std::vector<Job>> JobStore::Load() {
  std::vector<Job> jobs;
  SqliteStatement rows(*db_, kLoad);
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return jobs;
    v1::Job message;
    const bool parsed = message.ParseFromString(rows.Bytes(6));
    if (parsed) TakeOutMode(message.mutable_spec()->mutable_communication());
    absl::StatusOr<Job> job = parsed ? FromProto(message) : absl::DataLossError("not a switchyard.v1.Job");
    if (!job.ok()) {
      return absl::DataLossError(
          absl::StrCat(db_->name(), ": job of sequence ", rows.Int(0), ": ", job.status().message()));
    }
    job->sequence = rows.Int(0);
    job->queued = rows.Int(1);
    job->losses = static_cast<int32_t>(rows.Int(2));
    job->best_step = rows.Int(3);
    job->ran_ms = rows.Int(4);
    job->files_ready = static_cast<int32_t>(rows.Int(5));
    job->full_since_unix_ms = rows.Int(7);
    job->fork_digest = rows.Bytes(8);
    jobs.push_back(*std::move(job));
  }
}

absl::Status JobStore::Save(const Job& job) {
  SqliteStatement save(*db_, kSave);
  save.Bind(job.sequence).Bind(job.id);
  job.request_id.empty() ? save.BindNull() : save.Bind(RequestKey(job.owner, job.request_id));
  save.Bind(job.queued).Bind(int64_t{job.losses}).Bind(job.best_step).Bind(job.ran_ms).Bind(int64_t{job.files_ready});
  save.BindBlob(ToProto(job).SerializeAsString()).Bind(job.full_since_unix_ms).BindBlob(job.fork_digest);
  return save.Run();
}

absl::Status JobStore::Delete(const Job& job) {
  RETURN_IF_ERROR(db_->Run("BEGIN IMMEDIATE"));
  absl::Status status = SqliteStatement(*db_, "DELETE FROM jobs WHERE sequence = ?").Bind(job.sequence).Run();
  if (status.ok()) {
    status = SqliteStatement(*db_, "INSERT OR REPLACE INTO deleted_jobs(id) VALUES(?)").Bind(job.id).Run();
  }
  if (status.ok()) status = db_->Run("COMMIT");
  // (After some errors SQLite has rolled back by itself.)
  if (!status.ok()) static_cast<void>(db_->Run("ROLLBACK"));
  return status;
}

absl::StatusOr<std::vector<std::string>> JobStore::DeletedJobs() {
  std::vector<std::string> ids;
  SqliteStatement rows(*db_, "SELECT id FROM deleted_jobs ORDER BY id");
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, rows.Step());
    if (!more) return ids;
    ids.push_back(rows.Bytes(0));
  }
}

absl::Status JobStore::FolderRemoved(const std::string& id) {
  return SqliteStatement(*db_, "DELETE FROM deleted_jobs WHERE id = ?").Bind(id).Run();
}

}  // namespace switchyard::server
