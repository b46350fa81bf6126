// Estimates of a job's bytes on the disk.
#include "server/jobs/spec/job_bytes.h"

#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/token_format.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

constexpr double kOne = 1000 * (4 + 12);  // a checkpoint of 1000 parameters

jobs::JobSpec Spec() {
  jobs::JobSpec spec;
  spec.steps = 1000;
  spec.sequence_length = 10;
  spec.batch_sequences = 4;
  spec.checkpoints = {.every_steps = 100, .keep_last = 2};
  return spec;
}
const TrainedModelFacts kFacts = {.architecture = "", .vocab = 65536, .parameters = 1000};

TEST(JobBytesTest, CheckpointsThatAreKeptForEverCount) {
  jobs::JobSpec spec = Spec();
  EXPECT_EQ(JobBytes(spec, kFacts, {}), 3 * kOne);
  spec.checkpoints.keep_every_steps = 300;
  EXPECT_EQ(JobBytes(spec, kFacts, {}), (3 + 3) * kOne) << "of steps 300, 600 and 900";
  spec.checkpoints.keep_every_steps = 1;
  EXPECT_EQ(JobBytes(spec, kFacts, {}), (3 + 10) * kOne) << "of all that are saved";
  spec.checkpoints.keep_every_steps = 150;
  EXPECT_EQ(JobBytes(spec, kFacts, {}), (3 + 3) * kOne) << "only those of 300, 600 and 900 are saved";
}

TEST(JobBytesTest, StepsOfEpochsFollowFromTheData) {
  jobs::JobSpec spec = Spec();
  spec.steps = 0;
  spec.epochs = 2;
  spec.checkpoints.keep_every_steps = 100;
  EXPECT_EQ(JobBytes(spec, kFacts, {.tokens = 8000}), (3 + 4) * kOne) << "2 * 8000 / 40 steps";
  EXPECT_EQ(JobBytes(spec, kFacts, {.tokens = 4000, .text = 16000}), (3 + 4) * kOne) << "four bytes a token";
}

TEST(JobBytesTest, PackedTextCounts) {
  jobs::JobSpec spec = Spec();
  EXPECT_EQ(JobBytes(spec, kFacts, {.text = 500, .text_to_pack = 500}), 3 * kOne + 1000);
  TrainedModelFacts facts = kFacts;
  facts.vocab = 65537;
  EXPECT_EQ(JobBytes(spec, facts, {.text = 500, .text_to_pack = 500}), 3 * kOne + 2000) << "ids of four bytes";
  spec.dpo.beta = 0.1;
  EXPECT_EQ(JobBytes(spec, facts, {.text = 500, .text_to_pack = 500}), 3 * kOne + 4000) << "prompts twice";
  EXPECT_EQ(JobBytes(spec, facts, {.text = 500}), 3 * kOne) << "it is packed";
}

TEST(JobBytesTest, FilesAreMeasured) {
  const model::TempDir dir;
  dir.Write("a.jsonl", std::string(100, 'x'));
  dir.Write("held.jsonl", std::string(30, 'x'));
  std::string bin = jobs::EncodeTokenHeader({.vocab_size = 10, .num_tokens = 4, .num_documents = 1});
  bin.resize(bin.size() + 16);  // four ids, and where the document begins
  dir.Write("b.bin", bin);
  const absl::StatusOr<RootDir> root = RootDir::Open(dir.path(), "the root");
  ASSERT_TRUE(root.ok()) << root.status();
  jobs::JobSpec spec;
  spec.datasets = {"a.jsonl", "b.bin", "../a.jsonl", "none.jsonl", "none.bin"};
  spec.evaluation = {"held.jsonl", "b.bin"};
  using Data = DataBytes;
  EXPECT_EQ(ReadDataBytes(spec, *root, false, false), (Data{.tokens = 4, .text = 100, .text_to_pack = 130}));
  EXPECT_EQ(ReadDataBytes(spec, *root, true, false), (Data{.tokens = 4, .text = 100, .text_to_pack = 30}));
  EXPECT_EQ(ReadDataBytes(spec, *root, true, true), (Data{.tokens = 4, .text = 100}));
}

}  // namespace
}  // namespace switchyard::server
