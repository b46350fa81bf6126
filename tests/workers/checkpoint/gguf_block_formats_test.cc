// Every type's decoder has the bits of the gguf Python package (tests/golden/gguf/make.py).
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "workers/checkpoint/gguf/block_formats.h"

namespace switchyard::checkpoint {
namespace {

std::string Golden(const std::string& name) {
  std::ifstream file(absl::StrCat("tests/golden/gguf/blocks/", name), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::vector<GgufBlockFormat> Decodable() {
  std::vector<GgufBlockFormat> found;
  for (const GgufBlockFormat& each : GgufBlockFormats()) {
    if (DecoderOf(each) != nullptr) found.push_back(each);
  }
  return found;
}

class BlockFormatTest : public ::testing::TestWithParam<GgufBlockFormat> {};

TEST_P(BlockFormatTest, HasTheBitsOfTheGgufPackage) {
  const GgufBlockFormat& format = GetParam();
  const std::string blocks = Golden(absl::StrCat(format.name, ".blocks"));
  const std::string floats = Golden(absl::StrCat(format.name, ".floats"));
  const auto num_blocks = static_cast<int64_t>(blocks.size()) / format.bytes;
  const int64_t elements = num_blocks * format.elements;
  ASSERT_GE(num_blocks, 8);
  ASSERT_EQ(static_cast<int64_t>(blocks.size()), num_blocks * format.bytes);
  ASSERT_EQ(static_cast<int64_t>(floats.size()), elements * 4);
  std::vector<uint32_t> found(elements);
  DecodeBlocks(static_cast<GgufType>(format.type), reinterpret_cast<const uint8_t*>(blocks.data()), elements,
               reinterpret_cast<float*>(found.data()));
  std::vector<uint32_t> expected(elements);
  std::memcpy(expected.data(), floats.data(), floats.size());
  for (int64_t i = 0; i < elements; ++i) {
    ASSERT_EQ(found[i], expected[i]) << "element " << i << " of block " << i / format.elements;
  }
}

// Blocks do not depend on where they begin, nor on how many there are: rows are decoded in pieces.
TEST_P(BlockFormatTest, DecodesABlockAloneAtAnyAddress) {
  const GgufBlockFormat& format = GetParam();
  const std::string blocks = Golden(absl::StrCat(format.name, ".blocks"));
  const std::string floats = Golden(absl::StrCat(format.name, ".floats"));
  for (size_t b = 0; b < blocks.size() / format.bytes; ++b) {
    for (size_t shift = 0; shift < 4; ++shift) {
      const std::string moved = std::string(shift, 'x') + blocks.substr(b * format.bytes, format.bytes);
      std::vector<float> found(format.elements);
      DecoderOf(format)(reinterpret_cast<const uint8_t*>(moved.data()) + shift, 1, found.data());
      ASSERT_EQ(std::memcmp(found.data(), floats.data() + b * format.elements * 4, format.elements * 4), 0) << b;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BlockFormatTest, ::testing::ValuesIn(Decodable()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(BlockFormatsTest, KnowsWhatItLoads) {
  EXPECT_EQ(DecodableGgufTypes(),
            "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16, MXFP4");
  EXPECT_STREQ(FindGgufBlockFormat(static_cast<uint32_t>(GgufType::kQ4_K))->name, "Q4_K");
  EXPECT_EQ(DecoderOf(*FindGgufBlockFormat(17)), nullptr);
  for (const uint32_t removed : {4, 5, 31, 33, 36, 38}) EXPECT_EQ(FindGgufBlockFormat(removed), nullptr) << removed;
  EXPECT_EQ(FindGgufBlockFormat(42), nullptr);
  EXPECT_EQ(FindGgufBlockFormat(UINT32_MAX), nullptr);
}

}  // namespace
}  // namespace switchyard::checkpoint
