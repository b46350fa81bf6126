// Ranks that are processes give the tokens of one rank: on the CPU over sockets alone, on a GPU (ranks_gpu_test) over
// NCCL, all on the first GPU, as a machine may have only one.  When one of them dies, the others report it in time and
// continue without it.
//
// NCCL refuses two ranks on one device of one machine.  With an NCCL_HOSTID of its own each process is a machine to it,
// and it connects them by sockets, here on loopback; so what runs is its network path, not that of peers with NVLink.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>

#include "absl/strings/match.h"
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
#include "workers/comm/tcp/socket_communicator.h"
#include "workers/model/runner/device_steps.h"
#include "workers/tensor/device_backend.h"

namespace switchyard {
namespace {

constexpr absl::Duration kFormWithin = absl::Seconds(60);  // NCCL loads its kernels
constexpr absl::Duration kChildLimit = absl::Seconds(120);
constexpr absl::Duration kNoticedWithin = absl::Seconds(20);  // a step's deadline is a minute
constexpr char kFixture[] = "qwen2-shared";
constexpr int32_t kNumTokens = 16;

using Tokens = std::vector<std::vector<int32_t>>;  // of each prompt

struct RankAssignment {
  int rank = -1;
  int world = 0;
  std::string directory;  // where the ranks meet, and leave their tokens
  int64_t epoch = 1;
  int dies = -1;  // this rank ends once steps are recorded, and the others form epoch 2
};

std::vector<std::vector<int32_t>> Prompts(const model::Fixture& fixture) {
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 5; ++i) prompts.push_back(fixture.greedy[i].prompt);
  return prompts;
}

// The runs of every process of a world, one after the other, over one group.
std::vector<model::RankGroupOptions> Runs(int world) {
  std::vector<model::RankGroupOptions> runs;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const bool graphs : {false, true}) {
      model::RankGroupOptions run = {.dtype = dtype, .world = world, .chunk = 9, .batch = 4};
      run.graphs = graphs;
      run.in_flight = graphs ? model::ModelRunner::kMaxStarted : 1;
      runs.push_back(run);
    }
  }
  // Experts that are copied into slots: of a budget, and of a placement that follows the counts.
  model::RankGroupOptions budget = {.dtype = DType::kBf16, .world = world, .chunk = 9, .batch = 4, .graphs = false};
  model::RankGroupOptions placed = budget;
  budget.expert_slots = 3;
  placed.placement = placement::PlacementMode::kNoEstimate;
  runs.push_back(budget);
  runs.push_back(placed);
  return runs;
}

// The run before a rank dies, and that of the survivors.
model::RankGroupOptions Survivors(int world) {
  model::RankGroupOptions run = {.dtype = DType::kF32, .world = world, .chunk = 9, .batch = 6};
  run.in_flight = model::ModelRunner::kMaxStarted;
  return run;
}

std::string NameOf(const model::RankGroupOptions& run) {
  return absl::StrCat(DTypeName(run.dtype), run.graphs ? " with graphs" : " without graphs",
                      run.expert_slots > 0 ? ", a part of the experts" : "",
                      run.placement != placement::PlacementMode::kStatic ? ", experts that move" : "");
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

absl::Status FinishTogether(comm::Communicator* comm) {
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> all_done, comm->Barrier({.deadline = absl::Now() + kFormWithin}));
  return all_done->Wait();
}

absl::StatusOr<std::unique_ptr<comm::Communicator>> Join(const RankAssignment& assignment) {
  test::DirectoryStore directory(assignment.directory);
  comm::PrefixStore store(&directory, absl::StrCat("epoch", assignment.epoch, "/")), beside(&store, "watch/");
  comm::GroupOptions group{.rank = assignment.rank,
                           .world = assignment.world,
                           .epoch = assignment.epoch,
                           .token = "secret",
                           .address = "127.0.0.1",
                           .deadline = absl::Now() + kFormWithin};
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> messages, comm::FormSocketGroup({.group = group}, &store));
  group.token = "secret/watch";
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> watch, comm::FormSocketGroup({.group = group}, &beside));
  // On the CPU nobody keeps `watch`: to a rank that still forms it, this one would have left.
  RETURN_IF_ERROR(FinishTogether(messages.get()));
  return FormTestRank(&store, std::move(messages), std::move(watch), group.deadline);
}

absl::Status RunRank(const RankAssignment& assignment) {
  test::LiveAtMost(kChildLimit);
  const Device device = TestDevice();
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Communicator> comm, Join(assignment));
  std::cout << "formed" << std::endl;
  const model::Fixture fixture = model::LoadFixture(kFixture);
  const std::vector<model::RankGroupOptions> runs = Runs(assignment.world);
  for (size_t i = 0; i < runs.size(); ++i) {
    model::RankGroupOptions run = runs[i];
    run.only = comm.get();
    model::RankGroup group(fixture.dir, run);
    WriteTokens(TokensFile(assignment.directory, i, assignment.rank), group.Greedy(Prompts(fixture), kNumTokens));
    const model::DeviceSteps* const steps = group.runner(assignment.rank).device_steps();
    if ((steps != nullptr) == device.is_cpu())
      return absl::InternalError("steps of a device on the CPU, or none on one");
    const int64_t replayed = steps == nullptr ? 0 : steps->counters().replayed;
    std::cout << NameOf(run) << ": " << replayed << " steps replayed" << std::endl;
    if (steps != nullptr && (replayed > 0) != run.graphs)
      return absl::InternalError("graphs are as they should not be");
  }
  // Otherwise the first rank to leave would end the group for those that still compute.
  return FinishTogether(comm.get());
}

// Waits until all survivors have noticed.  OK: one of them named the dead rank.  (A rank that notices closes its own
// connections, so another may see that one go first.)
absl::Status AllNoticed(const RankAssignment& assignment, bool named) {
  test::DirectoryStore store(assignment.directory);
  std::vector<std::string> keys;
  for (int r = 0; r < assignment.world; ++r) {
    if (r != assignment.dies) keys.push_back(absl::StrCat("noticed/", r));
  }
  RETURN_IF_ERROR(store.Set(absl::StrCat("noticed/", assignment.rank), named ? "named" : "another"));
  ASSIGN_OR_RETURN(const std::vector<std::string> said, store.Get(keys, absl::Now() + 2 * kNoticedWithin));
  if (std::find(said.begin(), said.end(), "named") != said.end()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("nobody named rank ", assignment.dies));
}

// Steps are recorded, then one rank dies.  OK: the next step ended in time, and a survivor named the dead rank.
absl::Status LoseOne(const RankAssignment& assignment, const model::Fixture& fixture, model::RankGroupOptions run) {
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Communicator> comm, Join(assignment));
  run.only = comm.get();
  model::RankGroup group(fixture.dir, run);
  group.Greedy(Prompts(fixture), kNumTokens);
  RETURN_IF_ERROR(FinishTogether(comm.get()));
  if (assignment.rank == assignment.dies) {
    std::cout << "dies" << std::endl;
    _exit(0);
  }
  const absl::Time began = absl::Now();
  const absl::Status lost = group.TryGreedy(Prompts(fixture), kNumTokens).status();
  const absl::Duration took = absl::Now() - began;
  std::cout << "after " << took << ": " << lost << std::endl;
  if (lost.ok()) return absl::InternalError("steps went on without a rank");
  if (took > kNoticedWithin) return absl::InternalError(absl::StrCat("noticed after ", absl::FormatDuration(took)));
  if (!absl::StrContains(lost.message(), "rank ")) {
    return absl::InternalError(absl::StrCat("names no rank: ", lost.ToString()));
  }
  return AllNoticed(assignment, absl::StrContains(lost.message(), absl::StrCat("rank ", assignment.dies)));
}

absl::Status SurviveOne(const RankAssignment& assignment) {
  test::LiveAtMost(kChildLimit);
  const model::Fixture fixture = model::LoadFixture(kFixture);
  RETURN_IF_ERROR(LoseOne(assignment, fixture, Survivors(assignment.world)));
  RankAssignment next = assignment;
  next.epoch = 2;
  next.world = assignment.world - 1;
  next.rank = assignment.rank > assignment.dies ? assignment.rank - 1 : assignment.rank;
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Communicator> comm, Join(next));
  model::RankGroupOptions run = Survivors(next.world);
  run.only = comm.get();
  model::RankGroup group(fixture.dir, run);
  WriteTokens(TokensFile(assignment.directory, 0, next.rank), group.Greedy(Prompts(fixture), kNumTokens));
  return FinishTogether(comm.get());
}

bool ParseAssignment(int argc, char** argv, RankAssignment* assignment) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--rank=")) {
      SY_CHECK(absl::SimpleAtoi(argument, &assignment->rank));
    } else if (absl::ConsumePrefix(&argument, "--world=")) {
      SY_CHECK(absl::SimpleAtoi(argument, &assignment->world));
    } else if (absl::ConsumePrefix(&argument, "--dies=")) {
      SY_CHECK(absl::SimpleAtoi(argument, &assignment->dies));
    } else if (absl::ConsumePrefix(&argument, "--directory=")) {
      assignment->directory = std::string(argument);
    }
  }
  return assignment->rank >= 0;
}

// --- the parent

test::ChildSpec SpecOf(const RankAssignment& assignment) {
  test::ChildSpec spec;
  spec.arguments = {absl::StrCat("--rank=", assignment.rank), absl::StrCat("--world=", assignment.world),
                    absl::StrCat("--dies=", assignment.dies), absl::StrCat("--directory=", assignment.directory)};
  spec.environment = {absl::StrCat("NCCL_HOSTID=switchyard-", assignment.rank),
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
  const model::TempDir directory;
  std::vector<test::ChildSpec> specs;
  for (int r = 0; r < world; ++r) specs.push_back(SpecOf({.rank = r, .world = world, .directory = directory.path()}));
  const std::vector<test::ChildEnd> ends = test::RunChildren(specs, {.all = kChildLimit});
  for (int r = 0; r < world; ++r) EXPECT_EQ(ends[r].trouble, "") << "rank " << r << " wrote:\n" << ends[r].log;
  if (HasFailure()) return;

  const model::Fixture fixture = model::LoadFixture(kFixture);
  const auto prompts = Prompts(fixture);
  const std::vector<model::RankGroupOptions> runs = Runs(world);
  for (size_t i = 0; i < runs.size(); ++i) {
    const Tokens expected =
        model::RankGroup(fixture.dir, {.dtype = runs[i].dtype, .batch = 4}).Greedy(prompts, kNumTokens);
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

TEST_P(RanksTest, OneDiesAndTheOthersGoOn) {
  const int world = GetParam(), dies = world - 2;
  const model::TempDir directory;
  std::vector<test::ChildSpec> specs;
  for (int r = 0; r < world; ++r) {
    specs.push_back(SpecOf({.rank = r, .world = world, .directory = directory.path(), .dies = dies}));
  }
  const std::vector<test::ChildEnd> ends = test::RunChildren(specs, {.all = kChildLimit});
  for (int r = 0; r < world; ++r) EXPECT_EQ(ends[r].trouble, "") << "rank " << r << " wrote:\n" << ends[r].log;
  if (HasFailure()) return;
  const model::Fixture fixture = model::LoadFixture(kFixture);
  const auto prompts = Prompts(fixture);
  const Tokens expected = model::RankGroup(fixture.dir, {.dtype = DType::kF32, .batch = 4}).Greedy(prompts, kNumTokens);
  const int left = world - 1;
  for (int r = 0; r < left; ++r) {
    Tokens of_rank = expected;
    for (size_t p = 0; p < prompts.size(); ++p) {
      if (static_cast<int>(p) % left != r) of_rank[p].clear();
    }
    EXPECT_EQ(ReadTokens(TokensFile(directory.path(), 0, r)), of_rank) << "rank " << r << " of the " << left << " left";
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, RanksTest, testing::Values(2, 3));

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  if (switchyard::RankAssignment assignment; switchyard::ParseAssignment(argc, argv, &assignment)) {
    const absl::Status status =
        assignment.dies < 0 ? switchyard::RunRank(assignment) : switchyard::SurviveOne(assignment);
    if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", assignment.rank, status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
