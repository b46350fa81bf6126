// The selector's names are those that benchmarks read.
#include "tests/bench/schedules/named_program.h"

#include "gtest/gtest.h"
#include "scheduler/pipeline/schedule_timeline.h"
#include "scheduler/simulator/program_selector.h"

namespace switchyard::bench {
namespace {

TEST(NamedProgramTest, ReadsWhatTheSelectorNames) {
  for (const simulator::MoeMesh& mesh : {simulator::MoeMesh{}, {.copies = 4}, {.shards = 2, .copies = 2}}) {
    for (const simulator::ProgramOption& option : simulator::ProgramOptions(8, mesh)) {
      const auto program = ParseProgram(option.name);
      ASSERT_TRUE(program.ok()) << program.status();
      EXPECT_EQ(program->mesh.shards, mesh.shards);
      EXPECT_EQ(program->mesh.copies, mesh.copies);
      EXPECT_EQ(program->schedule.name, option.schedule.name);
      EXPECT_EQ(program->schedule.cut, option.schedule.cut);
      EXPECT_EQ(pipeline::Timeline(program->schedule.forward), pipeline::Timeline(option.schedule.forward));
      EXPECT_EQ(pipeline::Timeline(program->schedule.backward), pipeline::Timeline(option.schedule.backward));
    }
  }
}

}  // namespace
}  // namespace switchyard::bench
