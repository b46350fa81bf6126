// Programs of MoE layers on ranks that are processes, over sockets: the bytes of ranks that are threads.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "tests/gpu/child_processes.h"
#include "tests/workers/comm/comm_test_util.h"
#include "tests/workers/model/temp_dir.h"
#include "tests/workers/moe/program_run.h"
#include "workers/comm/tcp/socket_communicator.h"

namespace switchyard {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(60);

struct ProcessRank {
  int rank = -1;
  test::ProgramMesh mesh;
  std::string directory;  // where the ranks meet, and leave their bytes
};

test::ProgramSetting SettingOf(const test::ProgramMesh& mesh) {
  test::ProgramSetting setting = {
      .shape = {.ffn = test::kProgramFfn, .num_experts = test::kProgramExperts, .dtype = DType::kBf16}, .rows = {}};
  for (int group = 0; group < mesh.ranks / mesh.copies; ++group) setting.rows.push_back(5 - group);
  return setting;
}

absl::Status RunProcess(const ProcessRank& of) {
  test::LiveAtMost(kLimit);
  test::DirectoryStore directory(of.directory);
  std::ofstream out(absl::StrCat(of.directory, "/bytes.", of.rank), std::ios::binary);
  for (const test::ProgramCase& program : test::ProgramsOf(of.mesh)) {
    comm::PrefixStore store(&directory, program.name + "/");
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Communicator> world,
                     comm::FormSocketGroup({.group = test::FormingOptions(of.rank, of.mesh.ranks)}, &store));
    test::ProgramRunner runner(of.mesh, SettingOf(of.mesh));
    ASSIGN_OR_RETURN(const std::string bytes, runner.RunAs(program, world.get()));
    out << bytes;
    // The first rank to leave would end the group for those that still compute.
    ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> all_done, world->Barrier({.deadline = test::Soon()}));
    RETURN_IF_ERROR(all_done->Wait());
  }
  return out.flush().good() ? absl::OkStatus() : absl::UnavailableError("bytes cannot be written");
}

TEST(MoeProgramsProcessTest, TheBytesOfThreads) {
  for (const test::ProgramMesh& mesh : {test::ProgramMesh{4, 1, 1}, {4, 1, 4}, {4, 2, 2}}) {
    SCOPED_TRACE(absl::StrCat(mesh.shards, " shards, ", mesh.copies, " copies"));
    const model::TempDir directory;
    std::vector<test::ChildSpec> children;
    for (int rank = 0; rank < mesh.ranks; ++rank) {
      children.push_back({.arguments = {absl::StrCat("--rank=", rank), absl::StrCat("--ranks=", mesh.ranks),
                                        absl::StrCat("--shards=", mesh.shards), absl::StrCat("--copies=", mesh.copies),
                                        absl::StrCat("--directory=", directory.path())},
                          .environment = {}});
    }
    const std::vector<test::ChildEnd> ends = test::RunChildren(children, {.all = kLimit});
    std::vector<std::string> expected(children.size());
    for (const test::ProgramCase& program : test::ProgramsOf(mesh)) {
      const auto threads = test::ProgramRunner(mesh, SettingOf(mesh)).Run(program);
      ASSERT_TRUE(threads.ok()) << threads.status();
      for (size_t rank = 0; rank < expected.size(); ++rank)
        expected[rank] += threads->residuals[rank] + threads->d_xs[rank];
    }
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      ASSERT_EQ(ends[rank].trouble, "") << ends[rank].log;
      std::ifstream file(absl::StrCat(directory.path(), "/bytes.", rank), std::ios::binary);
      EXPECT_TRUE(std::string(std::istreambuf_iterator<char>(file), {}) == expected[rank]) << "rank " << rank;
    }
  }
}

bool ParseRank(int argc, char** argv, ProcessRank* of) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--directory=")) of->directory = std::string(argument);
    for (const auto& [flag, number] : {std::pair{"--rank=", &of->rank},
                                       {"--ranks=", &of->mesh.ranks},
                                       {"--shards=", &of->mesh.shards},
                                       {"--copies=", &of->mesh.copies}}) {
      if (absl::ConsumePrefix(&argument, flag)) SY_CHECK(absl::SimpleAtoi(argument, number));
    }
  }
  return of->rank >= 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  if (switchyard::ProcessRank of; switchyard::ParseRank(argc, argv, &of)) {
    const absl::Status status = switchyard::RunProcess(of);
    if (!status.ok()) std::fprintf(stderr, "rank %d: %s\n", of.rank, status.ToString().c_str());
    return status.ok() ? 0 : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
