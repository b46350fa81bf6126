// Memory files: what is written once is read by others, and what may yet change is refused.
#include "workers/tensor/memory_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/huge_shared_pages.h"
#include "workers/tensor/tensor.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr int64_t kBytes = 2 * kHugePageBytes;

UniqueFd Filled() {
  absl::StatusOr<UniqueFd> file = MakeMemoryFile(kBytes);
  EXPECT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<MemoryFileView> view = MemoryFileView::Map(file->get(), 0, kBytes, /*to_write=*/true);
  EXPECT_TRUE(view.ok()) << view.status();
  std::memset(view->data(), 7, kBytes);
  EXPECT_FALSE(SealMemoryFile(file->get()).ok()) << "it is mapped to be written";
  return *std::move(file);
}

TEST(MemoryFileTest, IsReadByOthersAndWrittenByNobody) {
  const UniqueFd file = Filled();
  ASSERT_TRUE(SealMemoryFile(file.get()).ok());
  const absl::StatusOr<UniqueFd> opened = OpenMemoryFile(PathOfMemoryFile(file.get()), kBytes);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const absl::StatusOr<MemoryFileView> part = MemoryFileView::Map(opened->get(), kHugePageBytes, kHugePageBytes, false);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->data()[0], 7);
  EXPECT_EQ(part->data()[kHugePageBytes - 1], 7);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(part->data()) % kHugePageBytes, 0u);
  for (const int fd : {file.get(), opened->get()})
    EXPECT_FALSE(MemoryFileView::Map(fd, 0, kBytes, /*to_write=*/true).ok());
}

TEST(MemoryFileTest, WhatMayChangeIsRefused) {
  const UniqueFd open_yet = Filled(), sealed = Filled();
  ASSERT_TRUE(SealMemoryFile(sealed.get()).ok());
  EXPECT_THAT(std::string(OpenMemoryFile(PathOfMemoryFile(open_yet.get()), kBytes).status().message()),
              HasSubstr("its bytes may change"));
  EXPECT_THAT(std::string(OpenMemoryFile(PathOfMemoryFile(sealed.get()), kHugePageBytes).status().message()),
              HasSubstr("another size"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  for (const std::string& path : {PathOfMemoryFile(ends[0]), std::string("/"), PathOfMemoryFile(1'000'000)})
    EXPECT_FALSE(OpenMemoryFile(path, kBytes).ok()) << path;
  close(ends[0]);
  close(ends[1]);
}

TEST(MemoryFileTest, HugePagesAreThereWhereTheKernelHasThem) {
  if (!test::HasHugeSharedPages()) GTEST_SKIP() << "this kernel has none";
  EXPECT_TRUE(CheckMemoryFiles().ok()) << CheckMemoryFiles();
}

}  // namespace
}  // namespace switchyard
