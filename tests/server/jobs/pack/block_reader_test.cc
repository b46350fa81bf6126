#include "server/jobs/pack/block_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/unique_fd.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

class BlockReaderTest : public testing::Test {
 protected:
  // Reads all blocks; checks that each has whole lines and the right position.
  std::vector<LineBlock> Read(const std::string& contents, int64_t max_line_bytes = 1 << 22) {
    const UniqueFd fd(open(dir_.Write("in", contents).c_str(), O_RDONLY));
    absl::StatusOr<BlockReader> reader = BlockReader::Create(fd.get(), "in", max_line_bytes);
    EXPECT_TRUE(reader.ok()) << reader.status();
    std::vector<LineBlock> blocks;
    std::string before;
    for (;;) {
      absl::StatusOr<LineBlock> block = reader->Next();
      EXPECT_TRUE(block.ok()) << block.status();
      if (!block.ok() || block->bytes.empty()) break;
      EXPECT_EQ(block->first_byte, static_cast<int64_t>(before.size()));
      EXPECT_EQ(block->first_line, 1 + std::count(before.begin(), before.end(), '\n'));
      EXPECT_TRUE(before.empty() || before.back() == '\n');
      before += block->bytes;
      blocks.push_back(*std::move(block));
    }
    EXPECT_TRUE(before == contents);
    return blocks;
  }

  const model::TempDir dir_;
};

TEST_F(BlockReaderTest, SmallFilesAreOneBlock) {
  EXPECT_EQ(Read("").size(), 0u);
  EXPECT_EQ(Read("a").size(), 1u);
  EXPECT_EQ(Read("a\nb\n").size(), 1u);
  EXPECT_EQ(Read("\n\n\n").size(), 1u);
  EXPECT_EQ(Read("a\nb").size(), 2u);
}

TEST_F(BlockReaderTest, LargeFilesAreSeveral) {
  std::string lines;
  for (int i = 0; i < 200'000; ++i) absl::StrAppend(&lines, "line ", i, "\n");
  const std::vector<LineBlock> blocks = Read(lines);
  EXPECT_GT(blocks.size(), 4u);
  for (const LineBlock& block : blocks) EXPECT_LT(block.bytes.size(), size_t{600} << 10);
}

TEST_F(BlockReaderTest, LinesMayBeLongerThanBlocks) {
  const std::string longer(1'000'000, 'x'), exact((256 << 10) - 1, 'y');
  Read(longer);
  Read(longer + "\n" + longer + "\nshort\n" + longer);
  Read(exact + "\n" + exact + "\n");
  Read(exact + "y\nshort\n");
}

TEST_F(BlockReaderTest, ALineIsAsLongAsItMayBe) {
  const std::string line(1'000'000, 'x');
  Read(line + "\n", 1'000'000);
  const UniqueFd fd(open(dir_.Write("in", "a\n" + line + "\n").c_str(), O_RDONLY));
  absl::StatusOr<BlockReader> reader = BlockReader::Create(fd.get(), "in", 999'999);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(reader->Next().ok());
  EXPECT_EQ(reader->Next().status().message(), "in:2 (byte 2): a line of more than 999999 bytes");
}

}  // namespace
}  // namespace switchyard::server
