// The model check by the workers' program: its answers, and programs without a usable answer.
//
// The programs are shell scripts, which write their arguments into a file.
#include "server/jobs/spec/model_check.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/jobs/api/job_convert.h"
#include "server/jobs/spec/job_bytes.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

constexpr char kGood[] =
    R"({"architecture":"MixtralForCausalLM","context":64,"vocab":300,"experts":4,"router_bias":true,"parameters":1.5e3})";

class ModelCheckTest : public testing::Test {
 protected:
  absl::StatusOr<TrainedModelFacts> Ask(const std::string& script, absl::Duration limit = absl::Seconds(60)) {
    const std::string program = base_.path() + "/worker";
    std::ofstream(program) << "#!/bin/sh\necho \"$@\" > " << base_.path() << "/asked\ncat > " << base_.path()
                           << "/spec\n"
                           << script << "\n";
    EXPECT_EQ(chmod(program.c_str(), 0700), 0);
    return AskWorkerProgram({.binary = program,
                             .checkpoint_root = "/root of models",
                             .offload_dir = "/files",
                             .workers_are_local = true,
                             .limit = limit})(Spec());
  }
  void ExpectNoAnswer(const std::string& script, const std::string& message, absl::Duration limit = absl::Seconds(60)) {
    const absl::Status status = Ask(script, limit).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << script;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << script;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/worker --check_job: ")) << script;
  }

  static jobs::JobSpec Spec() { return {.base_checkpoint = "a/b", .workers = 3}; }
  std::string Written(const std::string& name) {
    std::stringstream text;
    text << std::ifstream(base_.path() + name).rdbuf();
    return text.str();
  }

  model::TempDir base_;
};

TEST_F(ModelCheckTest, FactsOfAModel) {
  const absl::StatusOr<TrainedModelFacts> facts = Ask(absl::StrCat("echo '", kGood, "'"));
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->architecture, "MixtralForCausalLM");
  EXPECT_EQ(facts->context, 64);
  EXPECT_EQ(facts->vocab, 300);
  EXPECT_EQ(facts->experts, 4);
  EXPECT_TRUE(facts->router_bias);
  EXPECT_EQ(facts->parameters, 1500);
  EXPECT_EQ(facts->frozen + facts->adapters, 0);
  EXPECT_EQ(Written("/asked"),
            "--check_job --checkpoint_root=/root of models --train_offload_dir=/files --check_ranks=3\n");
  EXPECT_EQ(Written("/spec"), EncodeSpec(Spec()));
}

TEST_F(ModelCheckTest, NumbersWithoutMoments) {
  const std::string line = absl::StrCat(absl::StripSuffix(kGood, "}"), R"(,"frozen":500,"adapters":1e2})");
  const absl::StatusOr<TrainedModelFacts> facts = ParseModelCheckLine(line);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->frozen, 500);
  EXPECT_EQ(facts->adapters, 100);
}

TEST(CheckpointBytesTest, CountsWhatIsSaved) {
  jobs::JobSpec spec;
  spec.checkpoints.keep_last = 2;  // and one that is being written
  TrainedModelFacts facts = {.parameters = 1000};
  EXPECT_EQ(CheckpointBytes(spec, facts), 3 * 1000 * (4 + 12));
  facts.frozen = 400;
  EXPECT_EQ(CheckpointBytes(spec, facts), 3 * (1000 * (4 + 4) + 600 * 8));
  spec.dtype = jobs::TrainDType::kBf16;
  EXPECT_EQ(CheckpointBytes(spec, facts), 3 * (1000 * (2 + 4) + 600 * 8));
  spec.checkpoints.keep_best = true;
  EXPECT_EQ(CheckpointBytes(spec, facts), 4 * (1000 * (2 + 4) + 600 * 8));
  spec.lora.rank = 1024;
  EXPECT_EQ(CheckpointBytes(spec, facts), 0) << "the program did not say how many they are";
  facts = {.parameters = 1000, .adapters = 50};
  EXPECT_EQ(CheckpointBytes(spec, facts), 4 * 50 * (4 + 12));
}

// A server that stops does not wait for a program that does not answer.
TEST_F(ModelCheckTest, AServerThatStopsWaitsForNoAnswer) {
  const std::string program = base_.path() + "/worker";
  std::ofstream(program) << "#!/bin/sh\nexec sleep 100\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  int asked = 0;
  const CheckModelFn check =
      AskWorkerProgram({.binary = program, .checkpoint_root = "/", .limit = absl::Seconds(60), .stopping = [&asked] {
                          return ++asked > 2;
                        }});
  EXPECT_THAT(std::string(check(Spec()).status().message()), HasSubstr("the server stops"));
  EXPECT_EQ(asked, 3);
}

TEST_F(ModelCheckTest, WhatTheWorkersRefuse) {
  const absl::Status status = Ask(R"(echo '{"code":3,"error":"config.json: top_k"}'; exit 2)").status();
  EXPECT_EQ(status, absl::InvalidArgumentError("config.json: top_k"));
}

TEST_F(ModelCheckTest, AnAnswerIsWaitedForNoLongerThanItsLine) {
  EXPECT_TRUE(Ask(absl::StrCat("echo '", kGood, "'; exec sleep 1000")).ok());
}

TEST_F(ModelCheckTest, NobodyCanSay) {
  ExpectNoAnswer("exit 2", "it ended without an answer: exit code 2");
  ExpectNoAnswer("kill -9 $$", "it ended without an answer: signal 9 (Killed)");
  ExpectNoAnswer("printf '{\"code\":'", "it ended without an answer: exit code 0");
  ExpectNoAnswer("exec sleep 1000", "it gave no answer in time", absl::Milliseconds(200));
  ExpectNoAnswer("exec >&-; exec sleep 1000", "it ended without an answer: signal 9", absl::Milliseconds(200));
  ExpectNoAnswer("exec tr '\\0' x < /dev/zero", "its answer is longer than 65536 bytes");
  for (const char* line : {"usage", "[]", "{}", R"({"code":3})", R"({"code":0,"error":"x"})",
                           R"({"architecture":"M","context":64,"vocab":"300"})"}) {
    ExpectNoAnswer(absl::StrCat("echo '", line, "'"), "its answer is ");
  }
  const auto none = AskWorkerProgram({.binary = base_.path() + "/none", .checkpoint_root = "/"});
  EXPECT_THAT(std::string(none(Spec()).status().message()), HasSubstr("exit code 127 (cannot be run)"));
}

}  // namespace
}  // namespace switchyard::server
