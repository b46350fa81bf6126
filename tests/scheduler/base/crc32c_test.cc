// Against the vectors of RFC 3720 and a sum bit by bit.
#include "scheduler/base/io/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace switchyard {
namespace {

uint32_t BitByBit(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

TEST(Crc32cTest, VectorsOfTheStandard) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32cTest, EveryLengthAndEveryCut) {
  std::string bytes;
  for (int i = 0; i < 41; ++i) {
    EXPECT_EQ(Crc32c(bytes), BitByBit(bytes)) << i;
    EXPECT_EQ(Crc32cByTables(bytes), BitByBit(bytes)) << i;
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      EXPECT_EQ(Crc32c(bytes.substr(cut), Crc32c(bytes.substr(0, cut))), Crc32c(bytes)) << i << " cut at " << cut;
    }
    bytes.push_back(static_cast<char>(37 * i + 200));
  }
}

}  // namespace
}  // namespace switchyard
