#include "workers/tensor/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/base/config.h"
#include "gtest/gtest.h"
#include "workers/tensor/tensor.h"

namespace switchyard {
namespace {

constexpr int64_t kPiece = kHugePageBytes + 3 * kSmallPageBytes;

uintptr_t Address(const MappedMemory& memory) { return reinterpret_cast<uintptr_t>(memory.data); }
void Unmap(const MappedMemory& memory) { munmap(memory.data, static_cast<size_t>(memory.bytes)); }

// Of this process, in memory.
int64_t ResidentBytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(HugePagesTest, OnesOwnBeginAndEndWhereHugePagesDo) {
  const MappedMemory memory = MapHugePages(kPiece);
  EXPECT_EQ(Address(memory) % kHugePageBytes, 0U);
  EXPECT_EQ(memory.bytes, 2 * kHugePageBytes);
  std::memset(memory.data, 1, static_cast<size_t>(memory.bytes));
  Unmap(memory);
}

TEST(HugePagesTest, OnesBesideOthersFollowEachOther) {
  std::vector<MappedMemory> pieces;
  int follow = 0;
  for (int i = 0; i < 100; ++i) {
    pieces.push_back(MapBesideOthers(kPiece - 1));
    EXPECT_EQ(Address(pieces.back()) % kSmallPageBytes, 0U);
    EXPECT_EQ(pieces.back().bytes, kPiece);
    std::memset(pieces.back().data, i, kPiece);
    follow += i > 0 && Address(pieces.back()) == Address(pieces[pieces.size() - 2]) + kPiece;
  }
  EXPECT_GE(follow, 90);
  for (int i = 0; i < 100; i += 2) Unmap(pieces[static_cast<size_t>(i)]);
  for (int i = 1; i < 100; i += 2) {
    const auto* const bytes = static_cast<const char*>(pieces[static_cast<size_t>(i)].data);
    EXPECT_EQ(bytes[0], i);
    EXPECT_EQ(std::memcmp(bytes, bytes + 1, kPiece - 1), 0) << i;
    Unmap(pieces[static_cast<size_t>(i)]);
  }
}

TEST(HugePagesTest, LargeOnesAreAlone) {
  const MappedMemory memory = MapBesideOthers(kHugePageRegionBytes / 2 + 1);
  EXPECT_EQ(Address(memory) % kHugePageBytes, 0U);
  EXPECT_EQ(memory.bytes, kHugePageRegionBytes / 2 + kHugePageBytes);
  Unmap(memory);
}

// In huge pages of their own they would take nearly twice as much.
TEST(HugePagesTest, BuffersBesideOthersTakeWhatTheyHold) {
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  GTEST_SKIP() << "each is alone, so that writes beyond its end are noticed";
#endif
  constexpr int kBuffers = 100;
  const int64_t before = ResidentBytes(), in_use = MemoryInUse(DeviceKind::kCpu);
  std::vector<Buffer> buffers;
  for (int i = 0; i < kBuffers; ++i) {
    auto buffer = Buffer::AllocateBesideOthers(kPiece, Device::Cpu());
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    std::memset(buffer->data(), i, kPiece);
    buffers.push_back(*std::move(buffer));
  }
  EXPECT_EQ(MemoryInUse(DeviceKind::kCpu), in_use + kBuffers * kPiece);
  EXPECT_LT(ResidentBytes() - before, kBuffers * kPiece * 5 / 4);
  buffers.clear();
  EXPECT_LT(ResidentBytes() - before, kBuffers * kPiece / 10);
  EXPECT_EQ(MemoryInUse(DeviceKind::kCpu), in_use);
}

}  // namespace
}  // namespace switchyard
