// The check of a file of weights by its blocks' checksums: all blocks that are read, and no others.
#include "workers/checkpoint/safetensors/block_check.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/crc32c.h"
#include "tests/workers/checkpoint/safetensors_bytes.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/checkpoint/files/file_sums.h"

namespace switchyard::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kName[] = "model.safetensors";

class BlockCheckTest : public testing::Test {
 protected:
  // Four blocks and a part, with a tensor of two bytes among long ones.
  BlockCheckTest() {
    std::mt19937 random(1);
    const auto bytes = [&](int64_t count) {
      std::string text(static_cast<size_t>(count), '\0');
      std::generate(text.begin(), text.end(), [&] { return static_cast<char>(random()); });
      return WrittenTensor{"U8", {count}, std::move(text)};
    };
    written_ = SafetensorsBytes(
        {{"a", bytes(kSummedBlockBytes + 77)}, {"b", bytes(2)}, {"c", bytes(3 * kSummedBlockBytes + 5)}});
    Write(written_);
  }
  void Write(const std::string& bytes) {
    dir_.Write(kName, bytes);
    file_ = *WeightsFile::OpenSafetensors(*ModelDir::Open(dir_.path()), kName);
    std::vector<uint32_t> sums;
    for (size_t at = 0; at < written_.size(); at += kSummedBlockBytes) {
      sums.push_back(Crc32c(absl::string_view(written_).substr(at, kSummedBlockBytes)));
    }
    file_->set_block_sums(std::move(sums));
  }
  // Reads in pieces of so many bytes.
  absl::Status Read(BlockCheck* check, int64_t begin, int64_t end, int64_t piece) const {
    std::string bytes, scratch;
    for (int64_t at = begin; at < end; at += piece) {
      bytes.resize(static_cast<size_t>(std::min(piece, end - at)));
      if (absl::Status read = file_->Read(at, static_cast<int64_t>(bytes.size()), bytes.data()); !read.ok())
        return read;
      if (absl::Status checked = check->Check(at, bytes, &scratch); !checked.ok()) return checked;
    }
    return absl::OkStatus();
  }
  int64_t size() const { return static_cast<int64_t>(written_.size()); }

  const model::TempDir dir_;
  std::string written_;
  std::unique_ptr<WeightsFile> file_;
};

TEST_F(BlockCheckTest, TakesWhatIsWhole) {
  for (const int64_t piece : {int64_t{4 << 20}, kSummedBlockBytes, int64_t{100'001}}) {
    BlockCheck check(file_.get());
    EXPECT_TRUE(check.CheckHeader().ok());
    EXPECT_EQ(Read(&check, 0, size(), piece), absl::OkStatus()) << piece;
    EXPECT_EQ(Read(&check, 5, size() - 3, piece), absl::OkStatus()) << piece;
  }
}

// A flipped bit anywhere in a block that is read in part, and nowhere else.
TEST_F(BlockCheckTest, FindsABitInEveryBlockThatIsRead) {
  std::mt19937_64 random(2);
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); };
  const int64_t header = 8 + static_cast<int64_t>(file_->header().size());
  for (int round = 0; round < 60; ++round) {
    const int64_t flipped = header + below(size() - header), begin = header + below(size() - header);
    const int64_t end = begin + 1 + below(size() - begin);
    std::string damaged = written_;
    damaged[static_cast<size_t>(flipped)] ^= static_cast<char>(1 << below(8));
    Write(damaged);
    BlockCheck check(file_.get());
    const absl::Status found = Read(&check, begin, end, 1 + below(3 << 20));
    const int64_t block = flipped / kSummedBlockBytes;
    const bool is_read = begin / kSummedBlockBytes <= block && block <= (end - 1) / kSummedBlockBytes;
    EXPECT_EQ(absl::IsDataLoss(found), is_read) << found << " bit at " << flipped << ", read [" << begin << ", " << end;
  }
}

TEST_F(BlockCheckTest, NamesFilePlaceAndTensors) {
  std::string damaged = written_;
  damaged[static_cast<size_t>(size() - 1)] ^= 1;
  Write(damaged);
  BlockCheck last(file_.get());
  EXPECT_THAT(std::string(Read(&last, size() - 1, size(), 1).message()),
              AllOf(HasSubstr("model.safetensors: damaged at bytes [4194304, "), HasSubstr("where tensor \"c\" is: "),
                    HasSubstr("the manifest says ")));
  damaged = written_;
  damaged[kSummedBlockBytes + 5] ^= 1;
  Write(damaged);
  BlockCheck second(file_.get());
  EXPECT_THAT(std::string(Read(&second, 0, size(), 4 << 20).message()),
              HasSubstr("damaged at bytes [1048576, 2097152), where tensors \"a\" to \"c\" are: "));
  damaged = written_;
  damaged[kSummedBlockBytes - 1] ^= 1;
  Write(damaged);
  EXPECT_TRUE(absl::IsDataLoss(BlockCheck(file_.get()).CheckHeader())) << "its block has the first tensor, too";
}

}  // namespace
}  // namespace switchyard::checkpoint
