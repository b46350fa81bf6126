// Jobs that train a part of a model end to end: what is refused when they are submitted, and adapters of a base.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "clients/cpp/client_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

void AddFrozen(const char* pattern, v1::JobSpec* spec) {
  v1::ParameterRule& rule = *spec->add_parameters();
  rule.set_pattern(pattern);
  rule.set_frozen(true);
}

void ExpectRefused(TrainingServer* training, const v1::JobSpec& spec, const std::string& message) {
  const absl::Status status = training->Submit(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(client::Describe(status).reason, "BAD_FIELD") << status;
  EXPECT_EQ(client::Describe(status).metadata.at("field"), "spec.parameters") << status;
  EXPECT_THAT(std::string(status.message()), StartsWith(message));
}

// The workers' program compares rules with the names of the model's weights.
TEST(TrainingPartsTest, RulesThatDoNothingAreRefusedWhenAJobIsSubmitted) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  v1::JobSpec spec = TrainingServer::TinySpec();
  AddFrozen("*.no_such_proj.*", &spec);
  ExpectRefused(&training, spec, "spec.parameters[0]: \"*.no_such_proj.*\" fits no weight of ");
  spec.clear_parameters();
  AddFrozen("*.experts.*", &spec);
  AddFrozen("*.experts.1.*", &spec);
  ExpectRefused(&training, spec,
                "spec.parameters[1]: \"*.experts.1.*\" holds for no weight: rules before it hold for all that it fits");
  spec.clear_parameters();
  AddFrozen("*", &spec);
  ExpectRefused(&training, spec, "spec.parameters: all weights are frozen, so there is nothing to train");
  spec = TrainingServer::TinySpec();
  spec.set_architecture("gpt2");
  spec.set_balance_bias_rate(0.01);
  AddFrozen("*e_score_correction_bias", &spec);
  ExpectRefused(&training, spec, "spec.parameters: the biases of all routers are frozen");
}

TEST(TrainingPartsTest, AdaptersAreNoBaseOfAnotherJob) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.clear_architecture();
  spec.set_base_checkpoint("demo");
  spec.set_steps(4);
  spec.mutable_lora()->set_rank(2);
  const auto submitted = training.Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const v1::Job job = training.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  const std::string folder = job.checkpoint().folder();
  EXPECT_TRUE(fs::exists(training.root() / "checkpoints" / folder / "adapter_config.json"));
  spec.set_base_checkpoint(folder);
  const absl::Status status = training.Submit(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("spec.base_checkpoint: \"", folder, "\": has adapters of a model")));
}

}  // namespace
}  // namespace switchyard
