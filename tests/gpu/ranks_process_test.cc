// Ranks that are processes of their own give the tokens of one rank: on the CPU over Gloo alone, on a GPU
// (ranks_gpu_test) over NCCL, all on the first one, which is all that a machine may have.
//
// NCCL refuses two ranks on one device of one machine.  With an NCCL_HOSTID of its own each process is a machine to it,
// and it connects them by sockets, here on loopback; so what runs is its network path, not that of peers with NVLink.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "tests/devices/test_device.h"
#include "tests/gpu/child_processes.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/model/fixture.h"
#include "tests/workers/model/rank_group.h"
#include "tests/workers/model/temp_dir.h"
#include "workers/comm/gloo_communicator.h"
#include "workers/model/device_steps.h"
#include "workers/tensor/device_backend.h"

namespace switchyard {
namespace {

constexpr absl::Duration kFormWithin = absl::Seconds(60);  // NCCL loads its kernels
constexpr absl::Duration kChildLimit = absl::Seconds(120);
constexpr char kFixture[] = "qwen2-shared";
constexpr int32_t kNumTokens = 16;

using Tokens = std::vector<std::vector<int32_t>>;  // of each prompt

struct Seat {
  int rank = -1;
  int world = 0;
  std::string directory;  // where the ranks meet, and leave their tokens
};

std::vector<std::vector<int32_t>> Prompts(const Fixture& fixture) {
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 5; ++i) prompts.push_back(fixture.greedy[i].prompt);
  return prompts;
}

// What every process of a world runs, one after the other, over one group.
std::vector<GroupOptions> Runs(int world) {
  std::vector<GroupOptions> runs;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const bool graphs : {false, true}) {
      GroupOptions run = {.dtype = dtype, .world = world, .chunk = 9, .batch = 4};
      run.graphs = graphs;
      run.in_flight = graphs ? ModelRunner::kMaxStarted : 1;
      runs.push_back(run);
    }
  }
  return runs;
}

std::string NameOf(const GroupOptions& run) {
  return absl::StrCat(DTypeName(run.dtype), run.graphs ? " with graphs" : " without graphs");
}

std::string TokensFile(const std::string& directory, size_t run, int rank) {
  return absl::StrCat(directory, "/tokens.", run, ".", rank);
}

void WriteTokens(const std::string& path, const Tokens& tokens) {
  std::ofstream file(path);
  for (const std::vector<int32_t>& of_prompt : tokens) {
    file << of_prompt.size();
    for (const int32_t token : of_prompt) file << ' ' << token;
    file << '\n';
  }
  SY_CHECK(file.flush().good());
}

Tokens ReadTokens(const std::string& path) {
  Tokens tokens;
  std::ifstream file(path);
  for (size_t count = 0; file >> count;) {
    tokens.emplace_back(count);
    for (int32_t& token : tokens.back()) file >> token;
  }
  return tokens;
}

// --- a child: one rank

absl::StatusOr<std::unique_ptr<Communicator>> Join(const Seat& seat) {
  test::DirectoryStore store(seat.directory);
  PrefixStore beside(&store, "watch/");
  GlooGroupOptions group{.rank = seat.rank,
                         .world = seat.world,
                         .token = "secret",
                         .address = "127.0.0.1",
                         .deadline = absl::Now() + kFormWithin};
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> messages, FormGlooGroup(group, &store));
  group.control_only = true;
  group.token = "secret/watch";
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> watch, FormGlooGroup(group, &beside));
  return FormTestRank(&store, std::move(messages), std::move(watch), group.deadline);
}

absl::Status RunRank(const Seat& seat) {
  test::LiveAtMost(kChildLimit);
  const Device device = TestDevice();
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> comm, Join(seat));
  std::cout << "formed" << std::endl;
  const Fixture fixture = LoadFixture(kFixture);
  const std::vector<GroupOptions> runs = Runs(seat.world);
  for (size_t i = 0; i < runs.size(); ++i) {
    GroupOptions run = runs[i];
    run.only = comm.get();
    RankGroup group(fixture.dir, run);
    WriteTokens(TokensFile(seat.directory, i, seat.rank), group.Greedy(Prompts(fixture), kNumTokens));
    const DeviceSteps* const steps = group.runner(seat.rank).device_steps();
    if ((steps != nullptr) == device.is_cpu())
      return absl::InternalError("steps of a device on the CPU, or none on one");
    const int64_t replayed = steps == nullptr ? 0 : steps->num_replayed();
    std::cout << NameOf(run) << ": " << replayed << " steps replayed" << std::endl;
    if (steps != nullptr && (replayed > 0) != run.graphs)
      return absl::InternalError("graphs are as they should not be");
  }
  // Else the first to leave would end the group for those that still compute.
  ASSIGN_OR_RETURN(const std::unique_ptr<Work> all_done, comm->Barrier({.deadline = absl::Now() + kFormWithin}));
  return all_done->Wait();
}

bool ParseSeat(int argc, char** argv, Seat* seat) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--rank=")) {
      SY_CHECK(absl::SimpleAtoi(argument, &seat->rank));
    } else if (absl::ConsumePrefix(&argument, "--world=")) {
      SY_CHECK(absl::SimpleAtoi(argument, &seat->world));
    } else if (absl::ConsumePrefix(&argument, "--directory=")) {
      seat->directory = std::string(argument);
    }
  }
  return seat->rank >= 0;
}

// --- the parent

test::ChildSpec SpecOf(const Seat& seat) {
  test::ChildSpec spec;
  spec.arguments = {absl::StrCat("--rank=", seat.rank), absl::StrCat("--world=", seat.world),
                    absl::StrCat("--directory=", seat.directory)};
  spec.environment = {absl::StrCat("NCCL_HOSTID=switchyard-", seat.rank),
                      "NCCL_SOCKET_IFNAME=lo",
                      "NCCL_NET=Socket",
                      "NCCL_IB_DISABLE=1",
                      "NCCL_MNNVL_ENABLE=0",
                      "NCCL_DEBUG=WARN"};
  return spec;
}

class RanksTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const Device device = TestDevice();
    if (!device.is_cpu() && RegisteredBackend(device.kind).NumDevices() == 0) GTEST_SKIP() << "skipped: no GPU";
  }
};

TEST_P(RanksTest, ProcessesGiveTheTokensOfOneRank) {
  const int world = GetParam();
  const TempDir directory;
  std::vector<test::ChildSpec> specs;
  for (int r = 0; r < world; ++r) specs.push_back(SpecOf({.rank = r, .world = world, .directory = directory.path()}));
  const std::vector<test::ChildEnd> ends = test::RunChildren(specs, {.all = kChildLimit});
  for (int r = 0; r < world; ++r) EXPECT_EQ(ends[r].trouble, "") << "rank " << r << " wrote:\n" << ends[r].log;
  if (HasFailure()) return;

  const Fixture fixture = LoadFixture(kFixture);
  const auto prompts = Prompts(fixture);
  const std::vector<GroupOptions> runs = Runs(world);
  for (size_t i = 0; i < runs.size(); ++i) {
    const Tokens expected = RankGroup(fixture.dir, {.dtype = runs[i].dtype, .batch = 4}).Greedy(prompts, kNumTokens);
    for (int r = 0; r < world; ++r) {
      Tokens of_rank = expected;  // its own prompts, and nothing of others
      for (size_t p = 0; p < prompts.size(); ++p) {
        if (static_cast<int>(p) % world != r) of_rank[p].clear();
      }
      EXPECT_EQ(ReadTokens(TokensFile(directory.path(), i, r)), of_rank)
          << "rank " << r << " of " << world << ", " << NameOf(runs[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, RanksTest, testing::Values(2, 3));

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  if (switchyard::Seat seat; switchyard::ParseSeat(argc, argv, &seat)) {
    const absl::Status status = switchyard::RunRank(seat);
    if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", seat.rank, status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
