// Experts that are read from a disk: the file, the reader by both methods, the store over them, and what a damaged,
// shortened or unreadable file does.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/unique_fd.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/moe/experts/direct_reader.h"
#include "workers/moe/experts/disk_expert_copier.h"
#include "workers/moe/experts/expert_file.h"
#include "workers/moe/experts/expert_store.h"
#include "workers/moe/experts/summed_copier.h"

namespace switchyard::moe {
namespace {

using testing::HasSubstr;

constexpr int kLayers = 3, kExperts = 4;

// Of one byte of an expert.
char ByteOf(int layer, int expert, int64_t at) {
  return static_cast<char>(1 + layer * kExperts + expert + at / 1000 * 7 + at * 3);
}

class DiskExpertsTest : public testing::TestWithParam<DirectMethod> {
 protected:
  DiskExpertsTest() {
    options_.dir = dir_.path();
    options_.weights = "abc";
    options_.expert = PackedExpert(96, 80, DType::kF32, DeviceKind::kCpu);
    options_.on_disk = true;
    options_.piece_bytes = 2 * kDirectAlignment;
    options_.staging_bytes = 5 * options_.expert.bytes();
    options_.num_layers = kLayers;
    options_.num_experts = kExperts;
  }

  void SetUp() override {
    const UniqueFd fd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    if (GetParam() == DirectMethod::kUring && !DirectReader::Open(fd.get(), "this", 1, GetParam()).ok())
      GTEST_SKIP() << "skipped: no io_uring here";
  }

  std::unique_ptr<ExpertFile> Open() {
    const auto fill = [this](ExpertFile::Places* places) {
      ++fills_;
      int64_t filled = 0;
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int expert = 0; expert < kExperts; ++expert) {
          char* const at = places->At(layer, expert);
          if (at == nullptr) continue;
          for (int64_t i = 0; i < options_.expert.bytes(); ++i) at[i] = ByteOf(layer, expert, i);
          filled += options_.expert.bytes();
          if (!places->Report(filled)) return absl::CancelledError("stopped");
        }
      }
      return absl::OkStatus();
    };
    std::vector<int64_t> reported;
    auto file = ExpertFile::Open(options_, fill, [&](int64_t done, int64_t total) {
      reported.push_back(done);
      return done <= total;
    });
    EXPECT_TRUE(file.ok()) << file.status();
    // Whoever waits for progress sees some at each expert.
    EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
    if ((*file)->built()) {
      reported.erase(std::unique(reported.begin(), reported.end()), reported.end());
      EXPECT_GE(reported.size(), static_cast<size_t>(1 + kLayers * kExperts));
    }
    return *std::move(file);
  }

  // A store of two slots over the file.
  void MakeStore(const ExpertFile& file) {
    store_.reset();
    auto reader = DirectReader::Open(file.fd(), "expert file", DiskExpertCopier::kDepth, GetParam());
    ASSERT_TRUE(reader.ok()) << reader.status();
    auto disk = std::make_unique<DiskExpertCopier>(
        *std::move(reader), [&file](const ExpertId& id) { return file.OffsetOf(id.layer, id.expert); });
    auto summed =
        std::make_unique<SummedCopier>(SummedCopierOptions{.checksum =
                                                               [&file](const ExpertId& id, int64_t at) {
                                                                 return file.checksum_of_piece(id.layer, id.expert, at);
                                                               }},
                                       std::move(disk));
    summed_ = summed.get();
    ExpertStoreOptions options;
    options.expert = options_.expert;
    options.num_slots = 2;
    options.chunk_bytes = options_.piece_bytes;
    options.slot_alignment = kDirectAlignment;
    auto store = ExpertStore::Create(options, std::move(summed));
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  absl::Status Bring(const ExpertId& id, int slot) {
    store_->Evict(slot).IgnoreError();
    if (absl::Status status = store_->StartCopy(id, slot, CopyPriority::kDemand); !status.ok()) return status;
    const auto lease = store_->Acquire({id}, absl::Now() + absl::Seconds(20));
    if (!lease.ok()) return lease.status();
    const PackedExpert& expert = options_.expert.of(id.layer);
    const char* const bytes = static_cast<const char*>(lease->gate_up(0).data());
    for (int64_t i = 0; i < expert.bytes; ++i) {
      if (bytes[i] != ByteOf(id.layer, id.expert, i)) return absl::InternalError(absl::StrCat("wrong at byte ", i));
    }
    return absl::OkStatus();
  }
  static void Change(const std::string& path, int64_t at) {
    const int fd = open(path.c_str(), O_RDWR);
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
    close(fd);
  }

  model::TempDir dir_;
  ExpertFileOptions options_;
  int fills_ = 0;
  std::unique_ptr<ExpertFile> file_;
  const SummedCopier* summed_ = nullptr;
  std::unique_ptr<ExpertStore> store_;
};

INSTANTIATE_TEST_SUITE_P(, DiskExpertsTest, testing::Values(DirectMethod::kUring, DirectMethod::kThreads),
                         [](const auto& param) { return param.param == DirectMethod::kUring ? "Uring" : "Threads"; });

TEST_P(DiskExpertsTest, EveryExpertComesFromTheDisk) {
  file_ = Open();
  EXPECT_EQ(fills_, 3) << "five experts at a time fit";
  EXPECT_FALSE(file_->mapped());
  for (const bool anew : {false, true}) {
    if (anew) file_ = Open();
    MakeStore(*file_);
    for (int i = 0; i < kLayers * kExperts; ++i) {
      EXPECT_EQ(Bring({i / kExperts, i % kExperts}, i % 2), absl::OkStatus()) << i;
    }
    EXPECT_EQ(store_->counters().copied_bytes, kLayers * kExperts * options_.expert.bytes());
  }
  EXPECT_EQ(fills_, 3);
}

TEST_P(DiskExpertsTest, OfSmallExpertsNoMoreIsCopied) {
  std::vector<PackedExpert> layers(kLayers, PackedExpert(96, 80, DType::kF32, DeviceKind::kCpu));
  layers[1] = PackedExpert(96, 80, DType::kBf16, DeviceKind::kCpu);
  options_.expert = ExpertForms(layers);
  file_ = Open();
  MakeStore(*file_);
  for (int i = 0; i < kLayers * kExperts; ++i) {
    EXPECT_EQ(Bring({i / kExperts, i % kExperts}, i % 2), absl::OkStatus()) << i;
  }
  ASSERT_LT(layers[1].bytes, layers[0].bytes);
  EXPECT_EQ(store_->counters().copied_bytes, kExperts * ((kLayers - 1) * layers[0].bytes + layers[1].bytes));
}

TEST_P(DiskExpertsTest, ChangedBytesAreFoundWhenTheyAreRead) {
  file_ = Open();
  MakeStore(*file_);
  const int64_t at = 3 * kDirectAlignment + 5;  // of the second piece
  Change(file_->path(), file_->OffsetOf(1, 2) + at);
  ASSERT_EQ(Bring({1, 1}, 0), absl::OkStatus());
  EXPECT_FALSE(summed_->found_damage());
  const absl::Status status = Bring({1, 2}, 0);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("bytes [8192, 16384) of expert 2 of MoE layer 1 have checksum 0x"));
  EXPECT_TRUE(summed_->found_damage());
  EXPECT_EQ(Bring({1, 3}, 1), absl::OkStatus());
}

TEST_P(DiskExpertsTest, AFileThatHasShrunkEndsTheCopy) {
  file_ = Open();
  MakeStore(*file_);
  const int64_t end = file_->OffsetOf(2, 1) + 100;
  ASSERT_EQ(truncate(file_->path().c_str(), end), 0);
  EXPECT_EQ(Bring({2, 0}, 0), absl::OkStatus());
  absl::Status status = Bring({2, 1}, 0);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("cannot read bytes ["));
  status = Bring({2, 3}, 1);
  EXPECT_THAT(status.message(), HasSubstr("the file ends at byte "));
  EXPECT_TRUE(summed_->found_damage());
}

TEST_P(DiskExpertsTest, ADamagedTableIsBuiltAgain) {
  const std::string path = Open()->path();
  for (const int64_t at : {int64_t{0}, int64_t{8}, int64_t{90}, int64_t{4096}}) {
    Change(path, at);
    const int before = fills_;
    file_ = Open();
    EXPECT_EQ(fills_, before + 3) << at;
    file_.reset();
  }
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  file_ = Open();
  EXPECT_TRUE(file_->built());
}

// While room is taken, while experts are filled, and between two parts of them.
TEST_P(DiskExpertsTest, StoppingTheBuildLeavesNothing) {
  for (const int reports : {0, 1, 2}) {
    int calls = 0, filled = 0;
    const auto fill = [&](ExpertFile::Places* places) {
      ++filled;
      if (reports == 2) return absl::OkStatus();
      return places->Report(1) ? absl::OkStatus() : absl::CancelledError("no more");
    };
    const absl::Status status =
        ExpertFile::Open(options_, fill, [&](int64_t, int64_t) { return calls++ < reports; }).status();
    EXPECT_TRUE(absl::IsCancelled(status)) << status;
    EXPECT_EQ(filled, reports) << "parts of five experts";
    EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  }
}

}  // namespace
}  // namespace switchyard::moe
