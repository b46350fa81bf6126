#include "server/jobs/journal/job_store.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "server/jobs/api/job_convert.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;
using testing::Not;

Job Example(int64_t sequence) {
  Job job;
  job.sequence = sequence;
  job.id = absl::StrCat("job-", sequence);
  job.request_id = sequence % 2 == 0 ? "" : absl::StrCat("request-", sequence);
  job.spec.architecture = "demo";
  job.spec.datasets = {"a.bin"};
  job.spec.steps = 10;
  job.spec.optimizer.schedule.total_steps = 10;
  job.spec.optimizer.epsilon = 1e-7;
  job.spec.labels = {{"a", "b"}};
  job.submitted_workers = 4;
  job.state = jobs::JobState::kRunning;
  job.attempt = 7;
  job.error = rpc::MakeError(absl::StatusCode::kUnavailable, v1::DISK_FULL, "why", {{"field", "x"}});
  job.progress = jobs::TrainProgress{
      .step = 3, .loss = 0.1, .seconds = {.total = 0.7, .data = 0.3}, .dead_experts = 2, .packing = 4};
  job.evaluation = jobs::EvaluationResult{.step = 2, .loss = 1.5, .tokens = 9, .sets = {{"a", 1.25, 4}, {"b", 1.7, 5}}};
  job.best_evaluation = jobs::EvaluationResult{.step = 1, .loss = 1.25, .tokens = 9};
  job.best_checkpoint = jobs::SavedCheckpoint{.step = 1, .folder = "job-1/step-00000001"};
  job.checkpoint = jobs::SavedCheckpoint{.step = 2, .folder = "job-1/step-00000002", .bytes = 5, .saved_unix_ms = 4};
  job.changes = {{jobs::JobState::kPending, 1, "submitted"}, {jobs::JobState::kRunning, 2, "all ranks"}};
  job.created_unix_ms = 1;
  job.started_unix_ms = 2;
  job.origin = jobs::ForkOrigin{.job = "job-0", .step = 2, .attempts = 6};
  job.queued = 11;
  job.losses = 3;
  job.best_step = 5;
  job.ran_ms = 77;
  job.files_ready = 1;
  job.full_since_unix_ms = 99;
  job.fork_digest = std::string("\0digest", 7);
  return job;
}

class JobStoreTest : public testing::Test {
 protected:
  JobStoreTest() {
    char folder[] = "/tmp/job_store_XXXXXX";
    folder_ = mkdtemp(folder);
    path_ = folder_ + "/jobs.sqlite";
  }
  ~JobStoreTest() override { std::filesystem::remove_all(folder_); }

  absl::Status OpenStatus() { return JobStore::Open(path_).status(); }
  void Raw(const char* sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    sqlite3_close(db);
  }

  std::string folder_, path_;
};

TEST_F(JobStoreTest, GivesBackWhatWasSaved) {
  {
    auto store = JobStore::Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    for (int i = 1; i <= 3; ++i) ASSERT_TRUE((*store)->Save(Example(i)).ok());
    Job second = Example(2);
    second.state = jobs::JobState::kPaused;
    second.losses = 4;
    ASSERT_TRUE((*store)->Save(second).ok());
    ASSERT_TRUE((*store)->Delete(Example(3)).ok());
  }
  auto store = JobStore::Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  auto jobs = (*store)->Load();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 2u);
  const Job& job = (*jobs)[0];
  const Job wanted = Example(1);
  EXPECT_EQ(job.id, wanted.id);
  EXPECT_EQ(job.request_id, wanted.request_id);
  EXPECT_EQ(job.spec.optimizer.epsilon, 1e-7);
  EXPECT_EQ(job.spec.labels, wanted.spec.labels);
  EXPECT_EQ(job.submitted_workers, 4);
  EXPECT_EQ(job.state, jobs::JobState::kRunning);
  EXPECT_EQ(job.attempt, 7);
  EXPECT_EQ(job.error, wanted.error);
  ASSERT_TRUE(job.progress.has_value());
  EXPECT_EQ(job.progress->loss, 0.1);
  EXPECT_EQ(job.progress->seconds.data, 0.3);
  EXPECT_EQ(job.progress->dead_experts, 2);
  EXPECT_EQ(job.progress->packing, 4);
  EXPECT_EQ(job.evaluation, wanted.evaluation);
  EXPECT_EQ(job.best_evaluation, wanted.best_evaluation);
  EXPECT_EQ(job.best_checkpoint, wanted.best_checkpoint);
  EXPECT_EQ(job.checkpoint->folder, "job-1/step-00000002");
  ASSERT_EQ(job.changes.size(), 2u);
  EXPECT_EQ(job.changes[1].reason, "all ranks");
  EXPECT_EQ(job.origin, wanted.origin);
  EXPECT_EQ(job.queued, 11);
  EXPECT_EQ(job.losses, 3);
  EXPECT_EQ(job.best_step, 5);
  EXPECT_EQ(job.ran_ms, 77);
  EXPECT_EQ(job.files_ready, 1);
  EXPECT_EQ(job.full_since_unix_ms, 99);
  EXPECT_EQ(job.fork_digest, wanted.fork_digest);
  EXPECT_EQ((*jobs)[1].state, jobs::JobState::kPaused);
  EXPECT_EQ((*jobs)[1].losses, 4);
  EXPECT_EQ((*jobs)[1].request_id, "");
}

// A journal of version 1, from before full_since_ms and fork_digest.
TEST_F(JobStoreTest, AJournalOfVersion1GoesOn) {
  ASSERT_TRUE((*JobStore::Open(path_))->Save(Example(1)).ok());
  Raw("ALTER TABLE jobs DROP COLUMN full_since_ms; ALTER TABLE jobs DROP COLUMN fork_digest; DROP TABLE deleted_jobs; "
      "PRAGMA user_version=1");
  for (const int64_t since : {0, 99}) {
    auto store = JobStore::Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto jobs = (*store)->Load();
    ASSERT_TRUE(jobs.ok()) << jobs.status();
    ASSERT_EQ(jobs->size(), 1u);
    EXPECT_EQ((*jobs)[0].id, "job-1");
    EXPECT_EQ((*jobs)[0].ran_ms, 77);
    EXPECT_EQ((*jobs)[0].full_since_unix_ms, since);
    ASSERT_TRUE((*store)->Save(Example(1)).ok());
  }
}

// A journal of version 2, from before forks.  A server of version 2 would read one of forks and drop their origins.
TEST_F(JobStoreTest, AJournalOfVersion2GoesOnAsVersion4) {
  ASSERT_TRUE((*JobStore::Open(path_))->Save(Example(1)).ok());
  Raw("ALTER TABLE jobs DROP COLUMN fork_digest; DROP TABLE deleted_jobs; PRAGMA user_version=2");
  {
    auto store = JobStore::Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    const auto jobs = (*store)->Load();
    ASSERT_TRUE(jobs.ok()) << jobs.status();
    ASSERT_EQ(jobs->size(), 1u);
    EXPECT_EQ((*jobs)[0].full_since_unix_ms, 99);
    EXPECT_EQ((*jobs)[0].fork_digest, "");
    ASSERT_TRUE((*store)->Save(Example(2)).ok());
  }
  EXPECT_EQ((*(*JobStore::Open(path_))->Load())[1].fork_digest, Example(2).fork_digest);
  Raw("CREATE TABLE checked(version CHECK(version = 4)); INSERT INTO checked SELECT * FROM pragma_user_version");
}

// From before evaluation had named sets and jobs could be deleted.
TEST_F(JobStoreTest, AJournalOfVersion3GoesOn) {
  ASSERT_TRUE((*JobStore::Open(path_))->Save(Example(1)).ok());
  Raw("DROP TABLE deleted_jobs; PRAGMA user_version=3");
  auto store = JobStore::Open(path_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->DeletedJobs()->empty());
  const auto jobs = (*store)->Load();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ((*jobs)[0].fork_digest, Example(1).fork_digest);
  EXPECT_TRUE((*store)->Delete((*jobs)[0]).ok());
}

// The job is gone and its folder is known to be left, or neither, whenever the server is killed.
// Such specs had the mode in field 1 of their communication, "mode" where there is a number now, and more
// granularities.
TEST_F(JobStoreTest, AJobThatHadAModeOfCommunicationGoesOn) {
  const auto loaded = [&](const char* mode, const char* granularity, const char* packing) {
    std::filesystem::remove(path_);
    EXPECT_TRUE((*JobStore::Open(path_))->Save(Example(1)).ok());
    v1::Job message = ToProto(Example(1));
    v1::CommunicationSpec* const spec = message.mutable_spec()->mutable_communication();
    spec->GetReflection()->MutableUnknownFields(spec)->AddLengthDelimited(1, mode);
    spec->set_granularity(granularity);
    spec->set_expert_packing(packing);
    const std::string bytes = message.SerializeAsString();
    Raw(absl::StrCat("UPDATE jobs SET job = x'", absl::BytesToHexString(bytes), "'").c_str());
    const absl::StatusOr<std::vector<Job>> jobs = (*JobStore::Open(path_))->Load();
    EXPECT_TRUE(jobs.ok()) << jobs.status();
    if (!jobs.ok() || jobs->size() != 1) return std::string("none");
    const jobs::CommunicationSpec& now = jobs->front().spec.communication;
    return absl::StrCat(jobs::GranularityName(now.granularity), " ", jobs::PackingChoiceName(now.packing));
  };
  EXPECT_EQ(loaded("preempt", "mode", "mode"), "1 1");
  EXPECT_EQ(loaded("preempt", "model", "2"), "auto 2");
  EXPECT_EQ(loaded("full", "mode", "mode"), "auto trials");
  EXPECT_EQ(loaded("pipelining", "mode", "mode"), "auto 1");
  EXPECT_EQ(loaded("fair", "profile", "4"), "auto 4");
}

TEST_F(JobStoreTest, ADeletedJobLeavesItsIdUntilItsFolderIsRemoved) {
  {
    auto store = JobStore::Open(path_);
    for (int i = 1; i <= 3; ++i) ASSERT_TRUE((*store)->Save(Example(i)).ok());
    ASSERT_TRUE((*store)->Delete(Example(1)).ok());
    ASSERT_TRUE((*store)->Delete(Example(3)).ok());
    EXPECT_THAT(*(*store)->DeletedJobs(), testing::ElementsAre("job-1", "job-3"));
    ASSERT_TRUE((*store)->FolderRemoved("job-3").ok());
  }
  auto store = JobStore::Open(path_);
  ASSERT_EQ((*store)->Load()->size(), 1u);
  EXPECT_EQ((*(*store)->Load())[0].id, "job-2");
  EXPECT_THAT(*(*store)->DeletedJobs(), testing::ElementsAre("job-1"));
  ASSERT_TRUE((*store)->FolderRemoved("job-1").ok());
  ASSERT_TRUE((*store)->FolderRemoved("job-1").ok()) << "done before";
  EXPECT_TRUE((*store)->DeletedJobs()->empty());
  ASSERT_TRUE((*store)->Save(Example(4)).ok()) << "no transaction is left open";
}

TEST_F(JobStoreTest, KilledWhileItDeletesThereIsAJobOrItsTombstone) {
  constexpr int kJobs = 200;
  {
    auto store = JobStore::Open(path_);
    for (int i = 1; i <= kJobs; ++i) ASSERT_TRUE((*store)->Save(Example(i)).ok());
  }
  int64_t gone = 0;
  for (int round = 0; round < 5; ++round) {
    int acks[2];
    ASSERT_EQ(pipe(acks), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = JobStore::Open(path_);
      for (int64_t i = gone + 1; store.ok() && i <= kJobs; ++i) {
        if (!(*store)->Delete(Example(i)).ok() || write(acks[1], &i, sizeof(i)) != sizeof(i)) break;
      }
      _exit(1);
    }
    close(acks[1]);
    for (int i = 0; i <= round; ++i) ASSERT_EQ(read(acks[0], &gone, sizeof(gone)), static_cast<ssize_t>(sizeof(gone)));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    while (read(acks[0], &gone, sizeof(gone)) == static_cast<ssize_t>(sizeof(gone))) continue;
    close(acks[0]);
    auto store = JobStore::Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    const size_t jobs = (*store)->Load()->size(), tombstones = (*store)->DeletedJobs()->size();
    EXPECT_EQ(jobs + tombstones, static_cast<size_t>(kJobs));
    EXPECT_GE(tombstones, static_cast<size_t>(gone));
    gone = static_cast<int64_t>(tombstones);
  }
}

TEST_F(JobStoreTest, TwoJobsOfOneRequestAreRefused) {
  auto store = JobStore::Open(path_);
  ASSERT_TRUE((*store)->Save(Example(1)).ok());
  Job twin = Example(5);
  twin.request_id = Example(1).request_id;
  EXPECT_FALSE((*store)->Save(twin).ok());
  EXPECT_EQ((*store)->Load()->size(), 1u);
}

// Acknowledged jobs survive a kill; no job is stored in part.
TEST_F(JobStoreTest, KilledAtAnyMomentForgetsNothing) {
  int64_t saved = 0;
  for (int round = 0; round < 20; ++round) {
    int acks[2];
    ASSERT_EQ(pipe(acks), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = JobStore::Open(path_);
      for (int64_t i = saved + 1; store.ok(); ++i) {
        if (!(*store)->Save(Example(i)).ok() || write(acks[1], &i, sizeof(i)) != sizeof(i)) break;
      }
      _exit(1);
    }
    close(acks[1]);
    // Killed while it writes, after a number of saves that differs from round to round.
    for (int i = 0; i <= round; ++i)
      ASSERT_EQ(read(acks[0], &saved, sizeof(saved)), static_cast<ssize_t>(sizeof(saved)));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    while (read(acks[0], &saved, sizeof(saved)) == static_cast<ssize_t>(sizeof(saved))) continue;
    close(acks[0]);
    auto store = JobStore::Open(path_);
    ASSERT_TRUE(store.ok()) << store.status();
    auto jobs = (*store)->Load();
    ASSERT_TRUE(jobs.ok()) << jobs.status();
    const auto found = static_cast<int64_t>(jobs->size());
    // At most one more, which was on the disk but not acknowledged.
    ASSERT_GE(found, saved);
    ASSERT_LE(found, saved + 1);
    EXPECT_EQ(jobs->back().id, absl::StrCat("job-", found));
    saved = found;
  }
}

TEST_F(JobStoreTest, OneServerAtATime) {
  auto store = JobStore::Open(path_);
  ASSERT_TRUE(store.ok());
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = OpenStatus();
    const bool reported = status.code() == absl::StatusCode::kFailedPrecondition &&
                          status.message() == "jobs.sqlite: another process has it open";
    _exit(reported ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE((*store)->Save(Example(1)).ok());
}

TEST_F(JobStoreTest, RefusesWhatItDoesNotKnow) {
  ASSERT_TRUE(OpenStatus().ok());
  Raw("PRAGMA user_version=5");
  EXPECT_EQ(OpenStatus().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(OpenStatus().message()), HasSubstr("schema version 5, this server knows 4"));
  Raw("PRAGMA user_version=1; PRAGMA application_id=5");
  EXPECT_THAT(std::string(OpenStatus().message()), HasSubstr("is no journal of training jobs"));
  path_ = folder_ + "/other.sqlite";
  Raw("CREATE TABLE jobs(x)");
  EXPECT_EQ(OpenStatus().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobStoreTest, DamageIsReported) {
  std::ofstream(path_) << std::string(8192, 'x');
  EXPECT_EQ(OpenStatus().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(OpenStatus().message()), HasSubstr("jobs.sqlite"));
  std::filesystem::remove(path_);
  {
    auto store = JobStore::Open(path_);
    for (int i = 1; i <= 100; ++i) ASSERT_TRUE((*store)->Save(Example(i)).ok());
  }
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) / 2);
  EXPECT_EQ(OpenStatus().code(), absl::StatusCode::kDataLoss) << OpenStatus();
  std::filesystem::remove(path_);
  ASSERT_TRUE(OpenStatus().ok());
  Raw("INSERT INTO jobs VALUES(1, 'a', NULL, 0, 0, 0, 0, 0, x'ffff', 0, x'')");
  auto store = JobStore::Open(path_);
  EXPECT_EQ((*store)->Load().status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(JobStore::Open(folder_).status().code(), absl::StatusCode::kUnavailable);
}

// Errors go to clients, so they contain neither paths nor SQL.
TEST_F(JobStoreTest, ErrorsShowNeitherPathsNorStatements) {
  std::vector<absl::Status> errors;
  std::ofstream(path_) << std::string(8192, 'x');
  errors.push_back(OpenStatus());
  std::filesystem::remove(path_);
  ASSERT_TRUE(OpenStatus().ok());
  Raw("PRAGMA user_version=5");
  errors.push_back(OpenStatus());
  std::filesystem::remove(path_);
  ASSERT_TRUE(OpenStatus().ok());
  Raw("INSERT INTO jobs VALUES(1, 'a', NULL, 0, 0, 0, 0, 0, x'ffff', 0, x'')");
  {
    auto store = JobStore::Open(path_);
    errors.push_back((*store)->Load().status());
    ASSERT_TRUE((*store)->Save(Example(2)).ok());
    Job twin = Example(5);
    twin.id = Example(2).id;
    errors.push_back((*store)->Save(twin));
  }
  errors.push_back(JobStore::Open(folder_).status());
  for (const absl::Status& error : errors) {
    const std::string text(error.message());
    EXPECT_FALSE(error.ok());
    EXPECT_THAT(text, Not(HasSubstr(folder_)));
    EXPECT_THAT(text, Not(HasSubstr("INSERT")));
    EXPECT_THAT(text, Not(HasSubstr("PRAGMA")));
  }
  EXPECT_THAT(std::string(errors[0].message()), HasSubstr("jobs.sqlite: file is not a database; move it away"));
}

// A limit on the file's size simulates a full disk.
TEST_F(JobStoreTest, AFullDiskIsReported) {
  ASSERT_TRUE(OpenStatus().ok());
  auto store = JobStore::Open(path_);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->Save(Example(1)).ok());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit full = before;
  full.rlim_cur = 1;
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  const absl::Status status = (*store)->Save(Example(2));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_DFL);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr(folder_)));
  EXPECT_TRUE((*store)->Save(Example(2)).ok()) << "there is room again";
}

}  // namespace
}  // namespace switchyard::server
