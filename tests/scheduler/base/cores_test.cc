// The processors that a control group and an affinity mask leave of the machine's.
#include "scheduler/base/cores.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace switchyard {
namespace {

class CpuQuotaTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "cores.XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  double Quota() { return CpuQuota(root_ / "cgroup", root_ / "self"); }

  std::filesystem::path root_;
};

TEST_F(CpuQuotaTest, NoneWhereNothingIsSaid) {
  EXPECT_EQ(Quota(), 0);
  Write("self", "0::/\n");
  EXPECT_EQ(Quota(), 0);
  Write("cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(Quota(), 0);
}

TEST_F(CpuQuotaTest, AContainersOwnRoot) {
  Write("self", "0::/\n");
  Write("cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(Quota(), 1.5);
}

TEST_F(CpuQuotaTest, TheTightestOfTheGroupsAbove) {
  Write("self", "0::/a/b/c\n");
  Write("cgroup/cpu.max", "800000 100000\n");
  Write("cgroup/a/cpu.max", "200000 100000\n");
  Write("cgroup/a/b/cpu.max", "max 100000\n");
  Write("cgroup/a/b/c/cpu.max", "400000 100000\n");
  EXPECT_EQ(Quota(), 2);
}

TEST_F(CpuQuotaTest, APathOfTheHostIsNotThere) {
  Write("self", "0::/system.slice/docker-12.scope\n");
  Write("cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(Quota(), 3);
}

TEST_F(CpuQuotaTest, TheFirstVersion) {
  Write("self", "12:memory:/m\n4:cpu,cpuacct:/docker/1\n0::/\n");
  Write("cgroup/docker/1/cpu.cfs_quota_us", "250000\n");
  Write("cgroup/docker/1/cpu.cfs_period_us", "100000\n");
  Write("cgroup/cpu.cfs_quota_us", "-1\n");
  Write("cgroup/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota(), 2.5);
}

TEST(UsableCores, ObeysTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(UsableCores(), 1);
  sched_setaffinity(0, sizeof(before), &before);
}

}  // namespace
}  // namespace switchyard
