// The experts' file: built once, shared, and never used when it is not what it should be.
#include "workers/moe/experts/expert_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::moe {
namespace {

using testing::HasSubstr;

constexpr int kLayers = 3, kExperts = 4;

class ExpertFileTest : public testing::Test {
 protected:
  ExpertFileTest() {
    options_.dir = dir_.path();
    options_.weights = "abc";
    options_.expert = PackedExpert(32, 32, DType::kF32, DeviceKind::kCpu);
    options_.num_layers = kLayers;
    options_.num_experts = kExperts;
  }

  absl::StatusOr<std::unique_ptr<ExpertFile>> Open() {
    return ExpertFile::Open(
        options_,
        [this](ExpertFile::Places* places) {
          ++fills_;
          for (int layer = 0; layer < kLayers; ++layer) {
            for (int expert = 0; expert < kExperts; ++expert) {
              std::memset(places->At(layer, expert), 1 + layer * kExperts + expert,
                          static_cast<size_t>(options_.expert.bytes()));
              places->Report(layer * kExperts + expert);
            }
          }
          return fill_status_;
        },
        [this](int64_t, int64_t) {
          ++reports_;
          return go_on_.load();
        });
  }
  // The path of a file that was made and closed.
  std::string Make() {
    const auto file = Open();
    EXPECT_TRUE(file.ok()) << file.status();
    return (*file)->path();
  }
  bool IsRight(const ExpertFile& file) const {
    bool right = true;
    for (int i = 0; i < kLayers * kExperts; ++i) {
      const char* const bytes = file.At(i / kExperts, i % kExperts);
      right &= bytes[0] == i + 1 && bytes[options_.expert.bytes() - 1] == i + 1;
    }
    return right;
  }
  static void Change(const std::string& path, int64_t at, char to) {
    const int fd = open(path.c_str(), O_RDWR);
    ASSERT_EQ(pwrite(fd, &to, 1, at), 1);
    close(fd);
  }
  // That one is made anew, once, and is right.
  void ExpectBuiltAgain() {
    const int before = fills_;
    const auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(fills_, before + 1);
    EXPECT_TRUE((*file)->built());
    EXPECT_TRUE(IsRight(**file));
  }

  model::TempDir dir_;
  ExpertFileOptions options_;
  std::atomic<int> fills_{0};
  std::atomic<bool> go_on_{true};
  std::atomic<int> reports_{0};  // of progress
  absl::Status fill_status_;
};

TEST_F(ExpertFileTest, IsBuiltOnceAndThenThere) {
  const std::string path = Make();
  struct stat status = {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  const auto again = Open();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(fills_, 1);
  EXPECT_FALSE((*again)->built());
  EXPECT_TRUE(IsRight(**again));
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*again)->At(1, 1)) % 4096, 0u);
}

TEST_F(ExpertFileTest, OneOfManyBuildsIt) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto file = Open();
      right += file.ok() && IsRight(**file) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8);
  EXPECT_EQ(fills_, 1);
}

TEST_F(ExpertFileTest, DamagedBytesAreBuiltAgain) {
  const std::string path = Make();
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
  const int64_t last_expert = size - 8192;  // an expert of 12 KiB at a stride of as much
  for (const int64_t at :
       {int64_t{0}, int64_t{8}, int64_t{48}, int64_t{90}, int64_t{4096}, int64_t{8192 + 5}, last_expert}) {
    SCOPED_TRACE(at);
    Change(path, at, 0x77);
    ExpectBuiltAgain();
  }
  std::filesystem::resize_file(path, static_cast<uintmax_t>(size) - 1);
  ExpectBuiltAgain();
}

TEST_F(ExpertFileTest, AnUnfinishedOneIsGone) {
  fill_status_ = absl::DataLossError("the checkpoint ends early");
  EXPECT_EQ(Open().status(), fill_status_);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  fill_status_ = absl::OkStatus();
  ExpectBuiltAgain();
}

TEST_F(ExpertFileTest, OfABuilderThatDiedIsBuiltAgain) {
  const std::string path = Make();
  Change(path, 8, 0);  // the mark that comes last
  ExpectBuiltAgain();
}

// Experts of fp32, but in one layer.
ExpertForms WithSmallLayer(size_t layer) {
  std::vector<PackedExpert> layers(kLayers, PackedExpert(32, 32, DType::kF32, DeviceKind::kCpu));
  layers[layer] = PackedExpert(32, 32, DType::kBf16, DeviceKind::kCpu);
  return ExpertForms(layers);
}

TEST_F(ExpertFileTest, OtherWeightsHaveAnotherFile) {
  const std::string path = Make();
  std::string last;
  for (const auto& change : std::vector<std::function<void()>>{
           [&] { options_.weights = "abd"; },
           [&] { options_.expert = PackedExpert(32, 32, DType::kBf16, DeviceKind::kCpu); },
           [&] { options_.expert = PackedExpert(16, 64, DType::kBf16, DeviceKind::kCpu); },
           [&] { options_.expert = WithSmallLayer(1); }, [&] { options_.expert = WithSmallLayer(2); }}) {
    const int before = fills_;
    change();
    const std::string other = Make();
    EXPECT_NE(other, path);
    EXPECT_NE(std::exchange(last, other), other);
    EXPECT_GE(fills_, before);
  }
}

TEST_F(ExpertFileTest, IsNotTakenFromOthers) {
  const std::string path = Make();
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("mode 644"));
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(symlink("/etc/passwd", path.c_str()), 0);
  EXPECT_FALSE(Open().ok());
  EXPECT_EQ(fills_, 1);
}

TEST_F(ExpertFileTest, WhoUsesItKeepsIt) {
  const auto used = Open();
  ASSERT_TRUE(used.ok());
  Change((*used)->path(), 8192 + 5, 0x77);
  options_.patience = absl::Milliseconds(1);
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(fills_, 1) << "a file that somebody maps was written to";
}

TEST_F(ExpertFileTest, ABuilderThatStandsStillIsNamed) {
  const std::string path = Make();
  const int fd = open(path.c_str(), O_RDWR);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  options_.patience = absl::Milliseconds(1);
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("process ", getpid(), ", which holds it and stands at ")));
  go_on_ = false;
  EXPECT_TRUE(absl::IsCancelled(Open().status()));
  close(fd);
}

TEST_F(ExpertFileTest, UnusedOnesAreRemoved) {
  const std::string old = Make();
  options_.weights = "abd";
  const auto used = Open();
  ASSERT_TRUE(used.ok());
  options_.weights = "abe";
  const std::string kept = Make();
  dir_.Write("other", "file");
  RemoveUnusedExpertFiles(dir_.path(), kept, INT64_MAX);
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists((*used)->path()));
  EXPECT_TRUE(std::filesystem::exists(kept));
  EXPECT_TRUE(std::filesystem::exists(dir_.File("other")));
}

// On a disk: the ones that were opened longest ago, until there is room; none if that would not make enough.
TEST_F(ExpertFileTest, TheOldestOnesMakeRoom) {
  constexpr int64_t kBytes = 256 << 20;
  std::vector<std::string> files;
  for (int age : {1, 3, 2}) {
    files.push_back(dir_.File(absl::StrCat("switchyard-experts-", age, ".pack")));
    const int fd = open(files.back().c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_EQ(posix_fallocate(fd, 0, kBytes), 0);
    const timespec opened = absl::ToTimespec(absl::Now() - absl::Hours(age));
    const timespec times[] = {opened, opened};
    ASSERT_EQ(futimens(fd, times), 0);
    close(fd);
  }
  dir_.Write("switchyard-experts-notes.pack", "not one");
  files.push_back(dir_.File("switchyard-experts-notes.pack"));
  const auto free = static_cast<int64_t>(std::filesystem::space(dir_.path()).available);
  RemoveUnusedExpertFiles(dir_.path(), "", free + 4 * kBytes);
  RemoveUnusedExpertFiles(dir_.path(), "", free / 2);
  for (const std::string& file : files) EXPECT_TRUE(std::filesystem::exists(file)) << file;
  RemoveUnusedExpertFiles(dir_.path(), "", free + kBytes / 2);
  EXPECT_TRUE(std::filesystem::exists(files[0]));
  EXPECT_FALSE(std::filesystem::exists(files[1]));
  EXPECT_TRUE(std::filesystem::exists(files[2]));
  EXPECT_TRUE(std::filesystem::exists(files[3]));
}

// What takes long for a large model, beside `fill`: taking the room, the checksums, and comparing them.
TEST_F(ExpertFileTest, BuildingReportsAllOfItsParts) {
  ASSERT_TRUE(Open().ok());
  EXPECT_GE(reports_, 1 + 2 * kLayers * kExperts);
}

TEST_F(ExpertFileTest, SaysWhatRoomItWants) {
  options_.num_layers = 1 << 20;
  options_.expert = PackedExpert(8192, 8192, DType::kF32, DeviceKind::kCpu);
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("4194304 experts take 3221237794 MiB, ", dir_.path(), " has ")));
  EXPECT_THAT(status.message(), HasSubstr("--expert_file_dir"));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace switchyard::moe
