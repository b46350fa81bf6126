// A model that is served with a LoRA adapter: greedy tokens are PEFT's (tests/golden/adapters), on any number of
// workers.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/model_dir.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/training_fixture.h"
#include "workers/checkpoint/tensors/weights_file.h"

namespace switchyard {
namespace {

constexpr char kAdapters[] = "tests/golden/adapters";

struct Continuation {
  std::vector<int32_t> prompt, tokens;
};

std::vector<Continuation> Golden(const std::string& model) {
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(kAdapters);
  SY_CHECK_OK(dir.status());
  const auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, absl::StrCat("lora-", model, ".safetensors"));
  SY_CHECK_OK(file.status());
  std::vector<Continuation> all(3);
  for (const auto& [name, entry] : (*file)->tensors()) {
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<int32_t>* const to = name == absl::StrCat("greedy.", i, ".prompt")   ? &all[i].prompt
                                       : name == absl::StrCat("greedy.", i, ".tokens") ? &all[i].tokens
                                                                                       : nullptr;
      if (to == nullptr) continue;
      to->resize(static_cast<size_t>(entry.bytes) / sizeof(int32_t));
      SY_CHECK_OK((*file)->Read(entry.begin, entry.bytes, to->data()));
    }
  }
  return all;
}

class AdapterServedTest : public testing::TestWithParam<std::string> {
 protected:
  static std::vector<std::vector<int32_t>> Tokens(TestServer* server, const std::vector<Continuation>& golden) {
    std::vector<std::vector<int32_t>> tokens;
    for (const Continuation& each : golden) {
      v1::GenerateRequest request = IdsRequest(each.prompt, static_cast<int>(each.tokens.size()));
      request.set_ignore_eos(true);
      const StreamSeen seen = Generate(server->client(), request);
      EXPECT_TRUE(seen.ok()) << seen.end << " " << seen.fault;
      tokens.push_back(seen.choices.empty() ? std::vector<int32_t>() : seen.choices[0].token_ids);
    }
    return tokens;
  }
};

TEST_P(AdapterServedTest, AnswersAsPeft) {
  const std::vector<Continuation> golden = Golden(GetParam());
  std::vector<std::vector<int32_t>> wanted;
  for (const Continuation& each : golden) wanted.push_back(each.tokens);
  ASSERT_EQ(wanted[0].size(), 24u);
  const std::string model = "tests/golden/models/" + GetParam();
  const std::string adapter = absl::StrCat("--adapter=", kAdapters, "/lora-", GetParam());
  for (const int workers : {1, 2}) {
    const auto server =
        TestServer::Start({.model = model, .workers = workers, .flags = {"--threads=1", "--dtype=fp32", adapter}});
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(Tokens(server.get(), golden), wanted) << workers << " workers";
  }
  const auto base = TestServer::Start({.model = model, .flags = {"--threads=1", "--dtype=fp32"}});
  ASSERT_NE(base, nullptr);
  EXPECT_NE(Tokens(base.get(), golden), wanted);
}

INSTANTIATE_TEST_SUITE_P(Models, AdapterServedTest, testing::Values("olmoe-clip", "qwen2-shared", "mixtral-window"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{"-", "_"}});
                         });

// What a job with lora leaves is served with its base.
TEST(AdapterJobTest, ItsFolderIsAnAdapter) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.clear_architecture();
  spec.set_base_checkpoint("demo");
  spec.set_steps(6);
  spec.mutable_optimizer()->set_learning_rate(0.05);
  spec.mutable_lora()->set_rank(4);
  spec.mutable_lora()->set_alpha(16);
  const auto submitted = training.Submit(spec);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  const v1::Job job = training.WaitUntilIn(submitted->id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.DebugString();
  const std::filesystem::path folder = training.root() / "checkpoints" / job.checkpoint().folder();
  EXPECT_TRUE(std::filesystem::exists(folder / "adapter_model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "config.json"));
  const auto answer = [&](std::vector<std::string> flags) {
    const auto server = TestServer::Start({.model = training.root() / "checkpoints/demo", .flags = std::move(flags)});
    if (server == nullptr) return std::string();
    const StreamSeen seen = Generate(server->client(), TextRequest("The", 12));
    EXPECT_TRUE(seen.ok()) << seen.end << seen.fault;
    return seen.choices.empty() ? "" : seen.choices[0].text;
  };
  const std::string base = answer({}), adapted = answer({absl::StrCat("--adapter=", folder.string())});
  EXPECT_FALSE(adapted.empty());
  EXPECT_NE(adapted, base);
}

// The workers' program looks at a submitted job's patterns.
TEST(AdapterJobTest, APatternThatFitsNothingIsRefusedWhenItIsSubmitted) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  const auto refusal = [&](const std::string& pattern, int rank) {
    v1::JobSpec spec = TrainingServer::TinySpec();
    spec.clear_architecture();
    spec.set_base_checkpoint("demo");
    v1::ParameterRule* const rule = spec.add_parameters();
    rule->set_pattern(pattern);
    rule->set_frozen(true);
    spec.mutable_lora()->set_rank(rank);
    const absl::Status status = training.Submit(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal("*.expert.*", 0), testing::HasSubstr("spec.parameters[0]: \"*.expert.*\" fits no weight of "));
  EXPECT_THAT(refusal("*", 0), testing::HasSubstr("all weights are frozen"));
  EXPECT_THAT(refusal("*.experts.*", 4), testing::HasSubstr("q_proj.lora_A.weight"));
}

}  // namespace
}  // namespace switchyard
