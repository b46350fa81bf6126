// What the front shares between connections: who waits, who may hold how much memory, and how much there is.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/front/headroom.h"
#include "server/front/memory_budget.h"
#include "server/front/offenders.h"
#include "server/front/rate_limit.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

TEST(OffendersTest, EachOffenceDoublesTheWait) {
  Offenders offenders;
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(offenders.WaitsUntil("a"), absl::InfinitePast());
  EXPECT_EQ(offenders.BurstPart("a", now), 1);
  for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    offenders.Punish("a", /*is_loopback=*/false, now);
    EXPECT_EQ(offenders.WaitsUntil("a"), now + absl::Seconds(seconds));
    EXPECT_EQ(offenders.num_waiting(now), 1);
    now = offenders.WaitsUntil("a");
    EXPECT_EQ(offenders.num_waiting(now), 0);
  }
  EXPECT_EQ(offenders.BurstPart("a", now), 1.0 / 16);
  EXPECT_EQ(offenders.WaitsUntil("b"), absl::InfinitePast());
  now += absl::Minutes(11);
  EXPECT_EQ(offenders.BurstPart("a", now), 1);
  offenders.Punish("a", false, now);
  EXPECT_EQ(offenders.WaitsUntil("a"), now + absl::Seconds(1)) << "what was before is forgotten";
}

TEST(OffendersTest, ConnectionsThatWereOpenTogetherAreOneOffence) {
  Offenders offenders;
  const absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 100; ++i) offenders.Punish("a", false, now + absl::Milliseconds(i));
  EXPECT_EQ(offenders.WaitsUntil("a"), now + absl::Milliseconds(99) + absl::Seconds(1));
  EXPECT_EQ(offenders.BurstPart("a", now), 0.5);
}

TEST(ClientRatesTest, AClientThatConnectsAnewHasUsedWhatItHasUsed) {
  ClientRates rates(/*rate=*/10, /*burst=*/3);
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(rates.Of("a", now)->Take(now));
  EXPECT_FALSE(rates.Of("a", now)->Take(now));
  EXPECT_TRUE(rates.Of("b", now)->Take(now));
  EXPECT_EQ(rates.Of("a", now)->When(2), now + absl::Milliseconds(200));
  now += absl::Milliseconds(100);
  EXPECT_TRUE(rates.Of("a", now)->Take(now));
  EXPECT_FALSE(rates.Of("a", now)->Take(now));
}

TEST(ClientRatesTest, WhoHasUsedNothingLatelyIsForgottenFirst) {
  ClientRates rates(/*rate=*/1, /*burst=*/1);
  absl::Time now = absl::UnixEpoch();
  const std::shared_ptr<SharedRate> connected = rates.Of("connected", now);
  EXPECT_TRUE(connected->Take(now));
  for (size_t i = 0; i + 2 < ClientRates::kMost; ++i) (void)rates.Of(absl::StrCat(i), now);
  EXPECT_TRUE(rates.Of("gone", now)->Take(now));
  EXPECT_TRUE(rates.Of("new", now)->Take(now));
  EXPECT_FALSE(rates.Of("gone", now)->Take(now));
  EXPECT_FALSE(rates.Of("connected", now)->Take(now));
}

TEST(OffendersTest, OnLoopbackTheWaitIsShort) {
  Offenders offenders;
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 10; ++i, now += absl::Minutes(1)) {
    offenders.Punish("127.0.0.1", /*is_loopback=*/true, now);
    EXPECT_EQ(offenders.WaitsUntil("127.0.0.1"), now + absl::Seconds(1));
  }
}

TEST(OffendersTest, SoManyAreRememberedAndNoMore) {
  Offenders offenders;
  absl::Time now = absl::UnixEpoch();
  for (size_t i = 0; i < Offenders::kMost; ++i) offenders.Punish(std::to_string(i), false, now);
  EXPECT_EQ(offenders.num_waiting(now), static_cast<int>(Offenders::kMost));
  now += absl::Seconds(2);
  offenders.Punish("one more", false, now);
  EXPECT_EQ(offenders.num_waiting(now), 1);
  EXPECT_EQ(offenders.WaitsUntil("0"), absl::InfinitePast()) << "forgotten, as it need not wait";
}

TEST(MemoryBudgetTest, TheLargestWaitAndLittleOnesDoNotNotice) {
  constexpr int64_t kMb = 1 << 20;
  MemoryBudget budget(200 * kMb);
  EXPECT_EQ(budget.Room("large"), 100 * kMb);
  budget.Add("large", 99 * kMb);
  EXPECT_EQ(budget.Room("large"), kMb) << "half of it is used then";
  budget.Add("large", kMb);
  EXPECT_EQ(budget.Room("large"), 0);
  EXPECT_EQ(budget.Room("second"), 100 * kMb / 8) << "of what is left";
  budget.Add("second", 60 * kMb);
  EXPECT_EQ(budget.Room("second"), 0) << "it holds more than an equal part";
  EXPECT_EQ(budget.Room("third"), 40 * kMb / 8);
  budget.Add("third", 40 * kMb);
  EXPECT_EQ(budget.Room("third"), 0);
  EXPECT_EQ(budget.Room("little"), MemoryBudget::kLittle);
  budget.Add("little", MemoryBudget::kLittle);
  EXPECT_EQ(budget.Room("little"), 0);
  for (const char* client : {"second", "third"}) budget.Add(client, client[0] == 's' ? -60 * kMb : -40 * kMb);
  budget.Add("little", -MemoryBudget::kLittle);
  budget.Add("large", -30 * kMb);
  EXPECT_EQ(budget.held(), 70 * kMb);
  EXPECT_EQ(budget.Room("large"), 30 * kMb);
  budget.SetLimit(100 * kMb);
  EXPECT_EQ(budget.Room("large"), 0);
}

TEST(MemoryBudgetTest, OneOfManyThatHaveBegunMayFinish) {
  constexpr int64_t kMegabyte = 1000000;
  MemoryBudget budget(100 * kMegabyte);
  for (int i = 0; i < 50; ++i) budget.Add(absl::StrCat(i), kMegabyte);
  EXPECT_EQ(budget.Room("1", "1"), 0);
  budget.Claim("1");
  budget.Claim("2");
  EXPECT_EQ(budget.Room("1", "1"), 50 * kMegabyte);
  EXPECT_EQ(budget.Room("2", "2"), 0);
  budget.Disclaim("2");
  budget.Disclaim("1");
  budget.Claim("2");
  EXPECT_EQ(budget.Room("1", "1"), 0);
  EXPECT_EQ(budget.Room("2", "2"), 50 * kMegabyte);
}

TEST(MemoryHeadroomTest, IsTheLeastOfWhatTheMachineAndItsCgroupsLeave) {
  const model::TempDir dir;
  const std::string root = dir.path() + "/";
  std::filesystem::create_directories(root + "proc/self");
  std::filesystem::create_directories(root + "sys/fs/cgroup/outer/inner");
  dir.Write("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:   5000 kB\n");
  EXPECT_EQ(MemoryHeadroom(root), 5000 << 10);
  dir.Write("proc/self/cgroup", "1:name=systemd:/elsewhere\n0::/outer/inner\n");
  dir.Write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  dir.Write("sys/fs/cgroup/outer/inner/memory.current", "7\n");
  EXPECT_EQ(MemoryHeadroom(root), 5000 << 10);
  dir.Write("sys/fs/cgroup/outer/memory.max", "3000\n");
  dir.Write("sys/fs/cgroup/outer/memory.current", "1000\n");
  EXPECT_EQ(MemoryHeadroom(root), 2000);
  dir.Write("sys/fs/cgroup/outer/memory.stat", "anon 100\nactive_file 300\ninactive_file 400\n");
  EXPECT_EQ(MemoryHeadroom(root), 2700) << "the cache of files is dropped before anything is killed";
  dir.Write("sys/fs/cgroup/outer/inner/memory.max", "100\n");
  EXPECT_EQ(MemoryHeadroom(root), 93);
  dir.Write("sys/fs/cgroup/outer/inner/memory.current", "200\n");
  EXPECT_EQ(MemoryHeadroom(root), 0);
  EXPECT_GT(MemoryHeadroom(), 0) << "this machine's";
}

}  // namespace
}  // namespace switchyard::server
