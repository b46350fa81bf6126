// The quota of a key for the files of its training jobs: which calls it refuses, what counts, and what frees it.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/jobs/disk_quota.h"
#include "tests/half_requests.h"
#include "tests/server/jobs/training_fixture.h"
#include "tests/server/keys/test_keys.h"

namespace switchyard::server {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Pair;

constexpr int64_t kGib = int64_t{1} << 30;

class DiskQuotaTest : public testing::Test {
 protected:
  DiskQuotaTest() { std::filesystem::create_directories(base_.path() + "/job-a/step-1"); }
  int64_t Bytes(const std::vector<std::string>& jobs) const {
    const absl::StatusOr<RootDir> root = RootDir::Open(base_.path(), "the root");
    EXPECT_TRUE(root.ok()) << root.status();
    const absl::StatusOr<int64_t> bytes = BytesOfJobs(*root, jobs);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or(-1);
  }

  const model::TempDir base_;
};

TEST_F(DiskQuotaTest, FoldersCountEachFileOnce) {
  base_.Write("job-a/step-1/model", std::string(1000, 'x'));
  base_.Write("job-a/log", std::string(10, 'x'));
  base_.Write("elsewhere", std::string(5000, 'x'));
  EXPECT_EQ(Bytes({"job-a"}), 1010);
  EXPECT_EQ(Bytes({}), 0);
  EXPECT_EQ(Bytes({"job-none", "../job-a", ".."}), 0);
  // A fork has its parent's checkpoint by hard links, and both are this key's.
  std::filesystem::create_directories(base_.path() + "/job-b");
  std::filesystem::create_hard_link(base_.path() + "/job-a/step-1/model", base_.path() + "/job-b/model");
  base_.Write("job-b/log", std::string(7, 'x'));
  EXPECT_EQ(Bytes({"job-a", "job-b"}), 1017);
  EXPECT_EQ(Bytes({"job-b"}), 1007) << "of another key's parent";
  std::filesystem::create_symlink(base_.path() + "/elsewhere", base_.path() + "/job-b/link");
  std::filesystem::create_directory_symlink(base_.path(), base_.path() + "/job-b/folder");
  std::filesystem::create_directory_symlink(base_.path() + "/job-a", base_.path() + "/job-c");
  EXPECT_EQ(Bytes({"job-a", "job-b", "job-c"}), 1017);
}

// A job renames and removes checkpoints meanwhile: folders vanish before they are opened, and what else is there
// counts.
TEST_F(DiskQuotaTest, AFolderThatVanishesHidesNoOther) {
  constexpr int kFolders = 20;
  const absl::StatusOr<RootDir> root = RootDir::Open(base_.path(), "the root");
  ASSERT_TRUE(root.ok()) << root.status();
  for (const int at : {1, kFolders}) {  // as the first entry is looked at, and as all are known
    const auto folder = [&](int i) { return absl::StrCat(base_.path(), "/job-v/step-", i); };
    for (int i = 0; i < kFolders; ++i) {
      std::filesystem::create_directories(folder(i));
      base_.Write(absl::StrCat("job-v/step-", i, "/model"), std::string(10, 'x'));
    }
    int looked = 0;
    const absl::StatusOr<int64_t> bytes = BytesOfJobs(*root, {"job-v"}, [&] {
      if (++looked == at) {
        for (int i = 0; i < kFolders; i += 2) std::filesystem::remove_all(folder(i));
      }
      return false;
    });
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, 10 * kFolders / 2) << at;
  }
}

TEST_F(DiskQuotaTest, ACancelledCallIsLookedForNoFurther) {
  for (int i = 0; i < 10; ++i) base_.Write(absl::StrCat("job-a/file-", i), "x");
  const absl::StatusOr<RootDir> root = RootDir::Open(base_.path(), "the root");
  int looked = 0;
  const auto cancelled = [&looked] { return ++looked == 3; };
  EXPECT_TRUE(absl::IsCancelled(BytesOfJobs(*root, {"job-a"}, cancelled).status()));
  EXPECT_EQ(looked, 3);
  const DiskQuota quota = {.owner = "tina", .limit_bytes = 1000, .jobs = {"job-a"}};
  EXPECT_TRUE(absl::IsCancelled(CheckDiskQuota(quota, *root, 0, [] { return true; })));
}

// What it has already is no reason to refuse that a job goes on; what others have is.
TEST_F(DiskQuotaTest, AResumedJobsOwnFilesDoNotCount) {
  std::filesystem::create_directories(base_.path() + "/job-b");
  base_.Write("job-a/log", std::string(1500, 'x'));
  base_.Write("job-b/log", std::string(900, 'x'));
  const absl::StatusOr<RootDir> root = RootDir::Open(base_.path(), "the root");
  DiskQuota quota = {.owner = "tina", .limit_bytes = 1000, .jobs = {"job-a", "job-b"}, .resumed = "job-a"};
  EXPECT_TRUE(CheckDiskQuota(quota, *root, 0).ok());
  quota.resumed = "job-b";
  const absl::Status status = CheckDiskQuota(quota, *root, 0);
  EXPECT_EQ(rpc::ReasonOf(status), v1::DISK_QUOTA);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("limit 1000 bytes, files of its jobs but job-b have 1500; `switchyard train delete` frees"));
}

TEST_F(DiskQuotaTest, WhatIsThereAndWhatIsNeededHaveToFit) {
  base_.Write("job-a/log", std::string(600, 'x'));
  const absl::StatusOr<RootDir> root = RootDir::Open(base_.path(), "the root");
  const DiskQuota quota = {.owner = "tina", .limit_bytes = 1000, .jobs = {"job-a"}};
  EXPECT_TRUE(CheckDiskQuota(quota, *root, 400).ok());
  EXPECT_TRUE(CheckDiskQuota({.owner = "tina", .jobs = {"job-a"}}, *root, 1e30).ok()) << "no quota";
  for (const double needed : {401.0, 1e30}) {
    const absl::Status status = CheckDiskQuota(quota, *root, needed);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(rpc::ReasonOf(status), v1::DISK_QUOTA);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("disk_gib of the key tina: limit 1000 bytes, files of its jobs have 600, about "),
                      HasSubstr("more are needed for checkpoints and packed text; `switchyard train delete` frees")));
  }
  const rpc::ErrorView view = rpc::ViewError(rpc::ToGrpcStatus(CheckDiskQuota(quota, *root, 500), ""));
  EXPECT_THAT(view.details.metadata(), IsSupersetOf({Pair("limit", "1000"), Pair("used", "600"), Pair("needed", "500"),
                                                     Pair("actual", "1100"), Pair("field", "disk_gib")}));
}

class JobQuotasTest : public TrainingTest {
 protected:
  void Configure(ServerConfig* config) override {
    config->api_keys_file = Keys(1);
    config->metrics_port = 0;
  }
  std::string Keys(int gib) const {
    return WriteKeys(base_, KeyLine("tina", "trainer", absl::StrCat("disk_gib=", gib)) + KeyLine("theo", "trainer") +
                                KeyLine("root", "admin"));
  }
  grpc::Status SubmitAs(const std::string& name, std::string* id = nullptr) {
    v1::SubmitJobResponse response;
    grpc::Status status = stub_->SubmitJob(ContextOf(name).get(), Request(), &response);
    if (id != nullptr) *id = response.job().id();
    return status;
  }
  // Gives a job's folder a file without contents of so many bytes.
  void Fill(const std::string& id, int64_t bytes) const {
    const std::string folder = base_.path() + "/models/" + id;
    std::filesystem::create_directories(folder);
    base_.Write("models/" + id + "/large", "");
    std::filesystem::resize_file(folder + "/large", static_cast<uintmax_t>(bytes));
  }
  template <class Request, class Response>
  grpc::Status About(grpc::Status (v1::TrainingService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                     const std::string& name, const std::string& id, Request request = {}) {
    request.set_id(id);
    Response response;
    return (stub_.get()->*method)(ContextOf(name).get(), request, &response);
  }
  static void ExpectRefused(const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    const rpc::ErrorView view = rpc::ViewError(status);
    EXPECT_EQ(view.reason, "DISK_QUOTA") << status.error_message();
    EXPECT_EQ(view.details.metadata().at("limit"), absl::StrCat(kGib));
  }
};

TEST_F(JobQuotasTest, NewJobsForksAndResumesAreRefusedBeyondIt) {
  using Stub = v1::TrainingService::Stub;
  std::string id, second, other;
  ASSERT_TRUE(SubmitAs("tina", &id).ok());
  ASSERT_TRUE(SubmitAs("tina", &second).ok());
  ASSERT_TRUE(SubmitAs("theo", &other).ok());
  Fill(id, kGib - (4 << 20));
  EXPECT_TRUE(SubmitAs("tina").ok()) << "there is room for the small model's checkpoints";
  Fill(other, 3 * kGib);
  EXPECT_TRUE(SubmitAs("theo").ok()) << "without a quota";
  EXPECT_TRUE(SubmitAs("tina").ok()) << "others' files do not count";
  ASSERT_TRUE(About(&Stub::PauseJob, "tina", id).ok());
  Fill(id, kGib + 1);
  ExpectRefused(SubmitAs("tina"));
  EXPECT_TRUE(About(&Stub::ResumeJob, "tina", id).ok()) << "what it has itself is no reason";
  ASSERT_TRUE(About(&Stub::PauseJob, "tina", second).ok());
  ExpectRefused(About(&Stub::ResumeJob, "tina", second));
  ExpectRefused(About(&Stub::ResumeJob, "root", second));  // it is the owner's quota
  std::filesystem::create_directories(base_.path() + "/models/" + id + "/step-00000004");
  base_.Write("models/" + id + "/step-00000004/MANIFEST.json", "manifest");
  ExpectRefused(About(&Stub::ForkJob, "tina", id));
  EXPECT_TRUE(About(&Stub::ForkJob, "root", id).ok()) << "a fork is its own maker's";
  // What has ended can be deleted, which frees the quota.
  ASSERT_TRUE(About(&Stub::CancelJob, "tina", id).ok());
  ASSERT_TRUE(About(&Stub::DeleteJob, "tina", id).ok());
  EXPECT_TRUE(SubmitAs("tina").ok());
}

TEST_F(JobQuotasTest, MetricsCountWhatIsRefused) {
  const auto counted = [&](int times) {
    EXPECT_THAT(
        PageOf(server_->metrics_port(), 10),
        ContainsRegex(absl::StrCat("switchyard_calls_refused_total\\{[^}]*reason=\"DISK_QUOTA\"[^}]*\\} ", times)));
  };
  std::string id;
  ASSERT_TRUE(SubmitAs("tina", &id).ok());
  counted(0);
  Fill(id, kGib + 1);
  ExpectRefused(SubmitAs("tina"));
  ExpectRefused(SubmitAs("tina"));
  counted(2);
}

// 600 MiB of text are at most 1200 MiB of tokens, as ids of the small model's vocabulary have two bytes.
TEST_F(JobQuotasTest, TextThatTheJobPacksCounts) {
  const auto submit = [&](const std::string& name) {
    v1::SubmitJobRequest request = Request();
    request.mutable_spec()->set_datasets(0, "large.jsonl");
    v1::SubmitJobResponse response;
    return stub_->SubmitJob(ContextOf(name).get(), request, &response);
  };
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "some words of text ";
  std::string text;  // more than is looked at
  while (text.size() < (66 << 20)) absl::StrAppend(&text, "{\"text\": \"", words, "\"}\n");
  base_.Write("data/large.jsonl", text);
  EXPECT_TRUE(submit("tina").ok());
  std::filesystem::resize_file(base_.path() + "/data/large.jsonl", 600 << 20);
  ExpectRefused(submit("tina"));
  EXPECT_TRUE(submit("theo").ok()) << "without a quota";
}

TEST_F(JobQuotasTest, AnotherFileOfKeysCountsWhenItIsRead) {
  std::string id;
  ASSERT_TRUE(SubmitAs("tina", &id).ok());
  Fill(id, kGib + 1);
  ExpectRefused(SubmitAs("tina"));
  Keys(2);
  ExpectRefused(SubmitAs("tina"));  // not read yet
  server_->ReloadFiles();
  EXPECT_TRUE(SubmitAs("tina").ok());
}

}  // namespace
}  // namespace switchyard::server
