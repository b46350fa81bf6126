// Rows in a file: what was saved comes back, whatever the sizes of steps before; errors of the disk are said.
#include "workers/train/step/activation_file.h"

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::train {
namespace {

using moe::OffloadKey;

class ActivationFileTest : public testing::Test {
 protected:
  std::unique_ptr<ActivationFile> Open() {
    auto file = ActivationFile::Create([this](int64_t bytes) { return OpenStateFile(folder_.path(), bytes); });
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  static void Save(ActivationFile* file, const OffloadKey& key, const std::string& rows) {
    file->StartSave(key, rows);
    ASSERT_TRUE(file->Finish(key).ok());
  }
  static std::string Restored(ActivationFile* file, const OffloadKey& key, size_t size) {
    std::string rows(size, '?');
    file->StartRestore(key, absl::MakeSpan(rows));
    EXPECT_TRUE(file->Finish(key).ok());
    return rows;
  }
  const model::TempDir folder_;
};

TEST_F(ActivationFileTest, WhatWasSavedComesBack) {
  const std::unique_ptr<ActivationFile> file = Open();
  const OffloadKey input = {.layer = 1, .chunk = 2};
  const OffloadKey hidden = {.layer = 1, .buffer = pipeline::BufferKind::kHidden, .chunk = 2, .part = 1};
  for (const size_t size : {size_t{100000}, size_t{10}, size_t{110000}, size_t{500000}, size_t{0}}) {
    const std::string a(size, 'a'), b(size / 2 + 1, 'b');
    file->StartSave(input, a);
    file->StartSave(hidden, b);
    ASSERT_TRUE(file->Finish(hidden).ok());
    ASSERT_TRUE(file->Finish(input).ok());
    EXPECT_EQ(Restored(file.get(), hidden, b.size()), b);
    EXPECT_EQ(Restored(file.get(), input, a.size()), a);
    EXPECT_EQ(Restored(file.get(), input, a.size()), a);
  }
  const ActivationFileCounters counters = file->counters();
  EXPECT_EQ(counters.saved_bytes, 710010 + 355010);

  EXPECT_EQ(counters.file_bytes, 4096 * (31 + 16 + 153 + 77));  // a quarter of room; the small places were left
}

// A step that failed: copies that nobody waits for end by themselves, and the next save counts.
TEST_F(ActivationFileTest, DrainsWhatIsUnderWay) {
  const std::unique_ptr<ActivationFile> file = Open();
  const OffloadKey key = {.layer = 3};
  {
    const std::string rows(1 << 20, 'x');
    file->StartSave(key, rows);
    file->Drain();
  }
  EXPECT_EQ(file->Finish(key).code(), absl::StatusCode::kInvalidArgument);
  Save(file.get(), key, "rows");
  EXPECT_EQ(Restored(file.get(), key, 4), "rows");
}

class FullDisk : public StateFile {
 public:
  absl::Status Read(int64_t, absl::Span<char>) const override { return absl::UnavailableError("reads nothing"); }
  absl::Status Write(int64_t, absl::string_view) override { return absl::ResourceExhaustedError("is full"); }
};

TEST(ActivationFileErrorsTest, SaysWhatTheDiskSays) {
  const auto file = ActivationFile::Create([](int64_t) { return std::make_unique<FullDisk>(); });
  ASSERT_TRUE(file.ok());
  const std::string rows = "rows";
  (*file)->StartSave({}, rows);
  EXPECT_EQ((*file)->Finish({}), absl::ResourceExhaustedError("is full"));
  std::string to(4, '?');
  (*file)->StartRestore({}, absl::MakeSpan(to));
  EXPECT_EQ((*file)->Finish({}), absl::UnavailableError("reads nothing"));
  EXPECT_EQ(ActivationFile::Create([](int64_t) -> absl::StatusOr<std::unique_ptr<StateFile>> {
              return absl::UnavailableError("no folder");
            }).status(),
            absl::UnavailableError("no folder"));
}

}  // namespace
}  // namespace switchyard::train
