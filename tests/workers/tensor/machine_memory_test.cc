// Limits of memory, read from trees of files as kernels and containers show them.
#include "workers/tensor/machine_memory.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kMiB = 1 << 20;

class MachineMemoryTest : public testing::Test {
 protected:
  MachineMemoryTest() {
    Write("/proc/meminfo", "MemTotal:       16384000 kB\nMemFree:  1 kB\nMemAvailable:    8192000 kB\n");
    Write("/proc/sys/kernel/random/boot_id", "0f3d\n");
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(dir_.File(path.substr(1))).parent_path());
    dir_.Write(path.substr(1), text);
  }
  // `used` includes `cache`, the pages of files.
  void WriteV2(const std::string& folder, const std::string& max, int64_t used, int64_t cache) {
    Write(folder + "/memory.max", max + "\n");
    Write(folder + "/memory.current", absl::StrCat(used, "\n"));
    Write(folder + "/memory.stat", absl::StrCat("anon 5\nfile ", cache, "\ninactive_file ", cache - cache / 4,
                                                "\nactive_file ", cache / 4, "\n"));
  }
  void WriteV1(const std::string& folder, int64_t limit, int64_t used, int64_t cache, int64_t hierarchical) {
    Write(folder + "/memory.limit_in_bytes", absl::StrCat(limit, "\n"));
    Write(folder + "/memory.usage_in_bytes", absl::StrCat(used, "\n"));
    // Of the group alone, then of those in it, too.
    Write(folder + "/memory.stat", absl::StrCat("cache 1\ninactive_file 1\nactive_file 1\nhierarchical_memory_limit ",
                                                hierarchical, "\ntotal_cache ", cache, "\ntotal_inactive_file ",
                                                cache / 2, "\ntotal_active_file ", cache - cache / 2, "\n"));
  }
  static MemoryPool LeastOf(const MachineMemory& memory) {
    const auto less = [](const MemoryPool& a, const MemoryPool& b) { return a.available_bytes < b.available_bytes; };
    return *std::min_element(memory.pools.begin(), memory.pools.end(), less);
  }
  MachineMemory Read() const { return ReadMachineMemory(dir_.path()); }

  const model::TempDir dir_;
};

TEST_F(MachineMemoryTest, WithoutGroupsItIsTheMachines) {
  const MachineMemory memory = Read();
  EXPECT_EQ(memory.total_bytes, int64_t{16384000} << 10);
  EXPECT_EQ(memory.available_bytes(), int64_t{8192000} << 10);
  EXPECT_EQ(LeastOf(memory).limit, "/proc/meminfo has 8388608000 bytes available");
  EXPECT_THAT(memory.pools, ElementsAre(Field(&MemoryPool::name, "0f3d")));
}

// Otherwise each process would assume that it uses the memory alone.
TEST_F(MachineMemoryTest, WithoutABootTheHostsNameNamesIt) {
  std::filesystem::remove(dir_.File("proc/sys/kernel/random/boot_id"));
  EXPECT_NE(Read().pools.front().name, "");
}

TEST_F(MachineMemoryTest, AContainersRootGroup) {
  Write("/proc/self/cgroup", "0::/\n");
  WriteV2("/sys/fs/cgroup", absl::StrCat(1700 * kMiB), 300 * kMiB, 200 * kMiB);
  const MachineMemory memory = Read();
  EXPECT_EQ(memory.total_bytes, 1700 * kMiB);
  EXPECT_EQ(memory.available_bytes(), 1600 * kMiB) << "the file cache can be dropped";
  EXPECT_EQ(LeastOf(memory).limit, "/sys/fs/cgroup/memory.max allows 1782579200 bytes, 104857600 of which are used");
  ASSERT_EQ(memory.pools.size(), 2u);
  EXPECT_THAT(memory.pools[1].name, StartsWith("0f3d "));
}

TEST_F(MachineMemoryTest, ALimitWhoseUseIsUnknownCounts) {
  Write("/sys/fs/cgroup/memory.max", "1000000\n");
  EXPECT_EQ(Read().available_bytes(), 1000000);
}

TEST_F(MachineMemoryTest, TheOwnGroupOfV2) {
  Write("/proc/self/cgroup", "0::/system.slice/switchyard.service\n");
  WriteV2("/sys/fs/cgroup/system.slice/switchyard.service", absl::StrCat(900 * kMiB), 100 * kMiB, 0);
  WriteV2("/sys/fs/cgroup/system.slice", "max", 7000 * kMiB, 0);
  const MachineMemory memory = Read();
  EXPECT_EQ(memory.available_bytes(), 800 * kMiB);
  EXPECT_THAT(LeastOf(memory).limit, HasSubstr("/sys/fs/cgroup/system.slice/switchyard.service/memory.max allows"));
}

TEST_F(MachineMemoryTest, AGroupAboveMayAllowLess) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  WriteV2("/sys/fs/cgroup/a/b", absl::StrCat(900 * kMiB), 100 * kMiB, 0);
  WriteV2("/sys/fs/cgroup/a", absl::StrCat(1000 * kMiB), 950 * kMiB, 0);  // others are in it
  const MachineMemory memory = Read();
  EXPECT_EQ(memory.total_bytes, 900 * kMiB);
  EXPECT_EQ(memory.available_bytes(), 50 * kMiB);
  EXPECT_THAT(LeastOf(memory).limit, HasSubstr("/sys/fs/cgroup/a/memory.max allows"));
}

// Others may be in any of them.
TEST_F(MachineMemoryTest, EachGroupWithALimitIsAPool) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  WriteV2("/sys/fs/cgroup/a/b", absl::StrCat(900 * kMiB), 100 * kMiB, 0);
  WriteV2("/sys/fs/cgroup/a", absl::StrCat(2000 * kMiB), 950 * kMiB, 0);
  Write("/sys/fs/cgroup/a/memory.high", absl::StrCat(1900 * kMiB, "\n"));
  const MachineMemory memory = Read();
  ASSERT_EQ(memory.pools.size(), 3u);
  EXPECT_EQ(memory.pools[1].available_bytes, 800 * kMiB);
  EXPECT_EQ(memory.pools[2].available_bytes, 950 * kMiB);
  EXPECT_THAT(memory.pools[2].limit, HasSubstr("/sys/fs/cgroup/a/memory.high allows"));
  Write("/proc/self/cgroup", "0::/a/c\n");  // as a sibling sees it
  WriteV2("/sys/fs/cgroup/a/c", absl::StrCat(900 * kMiB), 100 * kMiB, 0);
  const MachineMemory sibling = Read();
  ASSERT_EQ(sibling.pools.size(), 3u);
  EXPECT_NE(sibling.pools[1].name, memory.pools[1].name);
  EXPECT_EQ(sibling.pools[2].name, memory.pools[2].name);
}

TEST_F(MachineMemoryTest, MemoryHighIsALimit) {
  WriteV2("/sys/fs/cgroup", absl::StrCat(900 * kMiB), 100 * kMiB, 0);
  Write("/sys/fs/cgroup/memory.high", absl::StrCat(500 * kMiB, "\n"));
  EXPECT_EQ(Read().available_bytes(), 400 * kMiB);
  EXPECT_THAT(LeastOf(Read()).limit, HasSubstr("/sys/fs/cgroup/memory.high allows"));
}

TEST_F(MachineMemoryTest, TheOwnGroupOfV1AndThoseAbove) {
  constexpr int64_t kNone = 9223372036854771712;
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:blkio,memory:/a/b\n0::/\n");
  WriteV1("/sys/fs/cgroup/memory", kNone, 9000 * kMiB, 0, kNone);
  WriteV1("/sys/fs/cgroup/memory/a", kNone, 700 * kMiB, 300 * kMiB, kNone);
  WriteV1("/sys/fs/cgroup/memory/a/b", 800 * kMiB, 700 * kMiB, 300 * kMiB, 800 * kMiB);
  EXPECT_EQ(Read().total_bytes, 800 * kMiB);
  EXPECT_EQ(Read().available_bytes(), 400 * kMiB);
  EXPECT_THAT(LeastOf(Read()).limit,
              HasSubstr("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes allows 838860800 bytes"));
  WriteV1("/sys/fs/cgroup/memory/a", 750 * kMiB, 700 * kMiB, 0, 750 * kMiB);
  EXPECT_EQ(Read().available_bytes(), 50 * kMiB);
}

// A container of v1 has its own group at the mount's root, and its path is the host's.
TEST_F(MachineMemoryTest, AContainerOfV1WithALimitAboveIt) {
  Write("/proc/self/cgroup", "4:memory:/kubepods/pod1/c1\n");
  WriteV1("/sys/fs/cgroup/memory", 9223372036854771712, 100 * kMiB, 0, 600 * kMiB);
  EXPECT_EQ(Read().available_bytes(), 500 * kMiB);
  EXPECT_THAT(LeastOf(Read()).limit, HasSubstr("/sys/fs/cgroup/memory/memory.stat allows"));
}

TEST_F(MachineMemoryTest, WhatIsNoLimitIsNone) {
  Write("/proc/self/cgroup", "nonsense\n0::/../../elsewhere\n");
  WriteV2("/sys/fs/cgroup", "max", 100, 0);
  WriteV2("/sys/fs/cgroup/unified", "many", 100, 0);
  EXPECT_EQ(Read().available_bytes(), int64_t{8192000} << 10);
  EXPECT_EQ(Read().pools.size(), 1u);
}

TEST_F(MachineMemoryTest, MoreThanTheLimitIsNothing) {
  WriteV2("/sys/fs/cgroup", "1000", 2000, 0);
  EXPECT_EQ(Read().available_bytes(), 0);
}

}  // namespace
}  // namespace switchyard
