// The file of log probabilities of a reference: there and back, damaged, cut, of other versions.
#include "workers/train/preferences/reference_file.h"

#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/crc32c.h"
#include "scheduler/jobs/checkpoint_names.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

ReferenceValues Values() {
  return {.dtype = jobs::TrainDType::kBf16,
          .tokens = 0x0123456789abcdef,
          .base = std::string(64, 'a'),
          .pairs = {{-1.5, -2.25}, NotComputed(), {0, -1e300}}};
}

// The bytes with a checksum that fits.
std::string Summed(std::string bytes) {
  bytes.resize(bytes.size() - 4);
  AppendInt(Crc32c(bytes), &bytes);
  return bytes;
}

TEST(ReferenceFileTest, ThereAndBack) {
  const std::string bytes = EncodeReferences(Values());
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), ReferenceFileBytes(3));
  const absl::StatusOr<ReferenceValues> read = DecodeReferences(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->dtype, jobs::TrainDType::kBf16);
  EXPECT_EQ(read->tokens, 0x0123456789abcdefu);
  EXPECT_EQ(read->base, std::string(64, 'a'));
  ASSERT_EQ(read->pairs.size(), 3u);
  EXPECT_EQ(read->pairs[0], Values().pairs[0]);
  EXPECT_FALSE(IsComputed(read->pairs[1]));
  EXPECT_EQ(read->pairs[2], Values().pairs[2]);
  EXPECT_TRUE(DecodeReferences(EncodeReferences({.base = std::string(64, '0')})).ok());
}

TEST(ReferenceFileTest, NoDamageStaysUnseen) {
  const std::string bytes = EncodeReferences(Values());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    EXPECT_FALSE(DecodeReferences(damaged).ok()) << "byte " << i;
    EXPECT_FALSE(DecodeReferences(bytes.substr(0, i)).ok()) << "cut at " << i;
  }
  EXPECT_FALSE(DecodeReferences(bytes + "x").ok());
}

TEST(ReferenceFileTest, SaysWhatIsWrong) {
  std::string bytes = EncodeReferences(Values());
  const auto problem = [](const std::string& text) { return DecodeReferences(text).status().ToString(); };
  EXPECT_THAT(problem("SYTOKENS" + bytes.substr(8)),
              HasSubstr("INVALID_ARGUMENT: file of the reference: does not begin"));
  std::string other = bytes;
  other[8] = 2;
  EXPECT_THAT(problem(other), HasSubstr("FAILED_PRECONDITION: file of the reference: version 2, this program reads 1"));
  other = bytes;
  other.back() = static_cast<char>(other.back() ^ 1);
  EXPECT_THAT(problem(other),
              HasSubstr("DATA_LOSS: file of the reference: damaged: its checksum is not that of its 148"));
  other = bytes;
  other[24] = 4;
  EXPECT_THAT(problem(Summed(other)), HasSubstr("INVALID_ARGUMENT: file of the reference: 148 bytes for 4 pairs"));
  other = bytes;
  other[31] = 1;  // more than there can be
  EXPECT_THAT(problem(Summed(other)), HasSubstr("148 bytes for "));
  other = bytes;
  other[12] = 3;
  EXPECT_THAT(problem(Summed(other)), HasSubstr("data type"));
}

TEST(ReferenceFileTest, HasItsNameByTheData) {
  EXPECT_EQ(jobs::ReferenceFile(0xabc), "reference-0000000000000abc.bin");
  EXPECT_TRUE(jobs::IsReferenceFile(jobs::ReferenceFile(~uint64_t{0})));
  for (const char* name : {"reference-.bin", "reference-0000000000000abc.bin.tmp-1", "reference-000000000000xabc.bin",
                           "evaluation.bin", "xreference-0000000000000abc.bin"}) {
    EXPECT_FALSE(jobs::IsReferenceFile(name)) << name;
  }
}

}  // namespace
}  // namespace switchyard::train
