// Weights of workers on one machine come to lie in one memory; here threads of one process stand for the workers.
#include "workers/serving/shared_weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/huge_shared_pages.h"

namespace switchyard::worker {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Eq;
using testing::Ne;

// Not whole pages.
constexpr int64_t kBytes = SharedWeights::kLeastBytes + 12345;

// A rank's weights.
struct Rank {
  explicit Rank(int64_t bytes = kBytes) : memory(bytes, Device::Cpu()), shared(memory) {
    for (int64_t i = 0; i < bytes; ++i) data()[i] = Byte(i);
  }
  static char Byte(int64_t i) { return static_cast<char>(i * 7 + i / 4096); }
  char* data() const { return static_cast<char*>(memory.data()); }
  bool is_whole() const {
    for (int64_t i = 0; i < memory.bytes(); ++i) {
      if (data()[i] != Byte(i)) return false;
    }
    return true;
  }
  // The file that a byte of the memory lies in: device and inode; empty: none.
  std::string FileAt(int64_t offset) const {
    const uint64_t address = reinterpret_cast<uint64_t>(data() + offset);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(' ', 5));
      const std::vector<std::string> range = absl::StrSplit(fields[0], '-');
      uint64_t begin = 0, end = 0;
      EXPECT_TRUE(absl::SimpleHexAtoi(range[0], &begin) && absl::SimpleHexAtoi(range[1], &end));
      if (address < begin || address >= end) continue;
      if (!absl::StrContains(line, "memfd:switchyard-weights")) return "";
      EXPECT_EQ(fields[1], "r--s") << "nobody can write it";
      return absl::StrCat(fields[3], " ", fields[4]);
    }
    return "nowhere";
  }
  std::string File() const { return FileAt(0); }
  // Of the memory, bytes in huge pages of a file.
  int64_t HugeBytes() const {
    std::ifstream maps("/proc/self/smaps");
    bool here = false;
    for (std::string line; std::getline(maps, line);) {
      // A mapping's first line has its addresses.
      if (line.find('-') < line.find(' '))
        here = absl::StartsWith(line, absl::StrCat(absl::Hex(reinterpret_cast<uint64_t>(data())), "-"));
      absl::string_view value = line;
      int64_t kib = 0;
      if (!here || !absl::ConsumePrefix(&value, "ShmemPmdMapped:") || !absl::ConsumeSuffix(&value, " kB")) continue;
      EXPECT_TRUE(absl::SimpleAtoi(value, &kib)) << line;
      return kib << 10;
    }
    return 0;
  }

  Buffer memory;
  SharedWeights shared;
};

class SharedWeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::HasHugeSharedPages()) GTEST_SKIP() << "nothing is shared on this kernel";
  }
};

std::vector<absl::Status> ShareAll(const std::vector<Rank*>& ranks) {
  comm::InMemoryStore store;
  std::vector<absl::Status> done(ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      done[r] = ranks[r]->shared.Share(static_cast<int>(r), static_cast<int>(ranks.size()), &store,
                                       absl::Now() + absl::Seconds(20));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return done;
}

TEST_F(SharedWeightsTest, EqualWeightsComeToLieInOneMemory) {
  Rank a, b, c;
  EXPECT_EQ(a.File(), "");
  EXPECT_THAT(ShareAll({&a, &b, &c}), Each(absl::OkStatus()));
  for (const Rank* rank : {&a, &b, &c}) {
    EXPECT_TRUE(rank->is_whole());
    EXPECT_EQ(rank->shared.bytes(), kBytes);
    EXPECT_THAT(rank->File(), AllOf(Ne(""), Eq(a.File())));
    EXPECT_EQ(rank->FileAt(kBytes - 1), a.File());
    EXPECT_GE(rank->HugeBytes(), kBytes);
  }
}

TEST_F(SharedWeightsTest, OneThatIsAloneKeepsItsOwn) {
  Rank a;
  EXPECT_THAT(ShareAll({&a}), ElementsAre(absl::OkStatus()));
  EXPECT_EQ(a.shared.bytes(), 0);
  EXPECT_EQ(a.File(), "");
  Rank small(SharedWeights::kLeastBytes - 1), as_small(SharedWeights::kLeastBytes - 1), large;
  EXPECT_THAT(ShareAll({&small, &as_small, &large}), Each(absl::OkStatus()));
  EXPECT_EQ(small.File() + as_small.File() + large.File(), "") << "two are too small, and one is another";
}

TEST_F(SharedWeightsTest, OtherBytesAreNeverTaken) {
  Rank a, b, c;
  b.data()[kBytes - 1] ^= 1;
  EXPECT_THAT(ShareAll({&a, &b, &c}), Each(absl::OkStatus()));
  EXPECT_EQ(b.shared.bytes(), 0);
  EXPECT_EQ(b.File(), "");
  EXPECT_EQ(b.data()[kBytes - 1], static_cast<char>(Rank::Byte(kBytes - 1) ^ 1));
  EXPECT_EQ(c.File(), a.File());
  EXPECT_TRUE(a.is_whole() && c.is_whole());
}

TEST_F(SharedWeightsTest, TheMemoryOutlivesItsOwner) {
  auto a = std::make_unique<Rank>();
  Rank b;
  EXPECT_THAT(ShareAll({a.get(), &b}), Each(absl::OkStatus()));
  const std::string file = b.File();
  a.reset();
  EXPECT_TRUE(b.is_whole());
  // A worker that comes anew, in whatever rank, takes what the other has.
  Rank anew, late;
  EXPECT_THAT(ShareAll({&anew, &b}), Each(absl::OkStatus()));
  EXPECT_EQ(anew.File(), file);
  EXPECT_EQ(b.File(), file);
  EXPECT_THAT(ShareAll({&b, &late, &anew}), Each(absl::OkStatus()));
  EXPECT_EQ(late.File(), file);
  EXPECT_TRUE(anew.is_whole() && b.is_whole() && late.is_whole());
}

// Offers what rank 1 offers, with this path as the file, and is its owner.
absl::Status ShareWith(const std::string& path, Rank* rank) {
  comm::InMemoryStore store;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  absl::Status done;
  std::thread sharing([&] { done = rank->shared.Share(1, 2, &store, deadline); });
  const auto offer = store.Get({"shared_weights/1"}, deadline);
  EXPECT_TRUE(offer.ok()) << offer.status();
  if (offer.ok()) {
    EXPECT_TRUE(store.Set("shared_weights/0", absl::StrCat(offer->front(), path)).ok());
    EXPECT_TRUE(store.Set("shared_weights_file/0", path).ok());
  }
  sharing.join();
  return done;
}

// A file with a rank's bytes.
struct Copy {
  explicit Copy(int64_t more = 0) : file(memfd_create("copy", MFD_ALLOW_SEALING)) {
    EXPECT_EQ(ftruncate(file, (kBytes / kHugePageBytes + 1) * kHugePageBytes + more), 0);
    EXPECT_EQ(pwrite(file, Rank().data(), static_cast<size_t>(kBytes), 0), kBytes);
  }
  ~Copy() { close(file); }
  std::string path() const { return absl::StrCat("/proc/", getpid(), "/fd/", file); }

  const int file;
};

TEST_F(SharedWeightsTest, WhatCannotBeTakenIsNot) {
  const Copy may_change, longer(kHugePageBytes), sealed;
  for (const Copy* copy : {&longer, &sealed})
    ASSERT_EQ(fcntl(copy->file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK), 0);
  const std::string on_disk = absl::StrCat(testing::TempDir(), "/shared-weights-", getpid());
  std::ofstream(on_disk, std::ios::binary).write(Rank().data(), kBytes);
  std::filesystem::resize_file(on_disk, (kBytes / kHugePageBytes + 1) * kHugePageBytes);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  for (const std::string& path : {absl::StrCat("/proc/", getpid(), "/fd/1000000"), may_change.path(), longer.path(),
                                  absl::StrCat("/proc/", getpid(), "/fd/", ends[0]), std::string("/"), on_disk}) {
    Rank rank;
    EXPECT_TRUE(ShareWith(path, &rank).ok()) << path;
    EXPECT_EQ(rank.shared.bytes(), 0) << path;
    EXPECT_EQ(rank.File(), "") << path;
    EXPECT_TRUE(rank.is_whole()) << path;
  }
  close(ends[0]);
  close(ends[1]);
  unlink(on_disk.c_str());
  Rank rank;
  EXPECT_TRUE(ShareWith(sealed.path(), &rank).ok());
  EXPECT_EQ(rank.shared.bytes(), kBytes) << "the same bytes, which stay";
  EXPECT_TRUE(rank.is_whole());
}

TEST_F(SharedWeightsTest, AGroupThatDoesNotFormChangesNothing) {
  Rank a;
  comm::InMemoryStore store;
  EXPECT_EQ(a.shared.Share(0, 2, &store, absl::Now()).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(a.File(), "");
  EXPECT_TRUE(a.is_whole());
}

}  // namespace
}  // namespace switchyard::worker
