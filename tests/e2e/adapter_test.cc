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

std::vector<Continuation> Golden(const std::string& name) {
  const absl::StatusOr<ModelDir> dir = ModelDir::Open(kAdapters);
  SY_CHECK_OK(dir.status());
  const auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, absl::StrCat(name, ".safetensors"));
  SY_CHECK_OK(file.status());
  std::vector<Continuation> all(3);
  for (const auto& [tensor, entry] : (*file)->tensors()) {
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<int32_t>* const to = tensor == absl::StrCat("greedy.", i, ".prompt")   ? &all[i].prompt
                                       : tensor == absl::StrCat("greedy.", i, ".tokens") ? &all[i].tokens
                                                                                         : nullptr;
      if (to == nullptr) continue;
      to->resize(static_cast<size_t>(entry.bytes) / sizeof(int32_t));
      SY_CHECK_OK((*file)->Read(entry.begin, entry.bytes, to->data()));
    }
  }
  return all;
}

class AdapterServedTest : public testing::TestWithParam<std::string> {
 public:
  static std::string ModelOf(const std::string& adapter) {
    return "tests/golden/models/" + adapter.substr(adapter.find('-') + 1);
  }
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
  const std::string model = ModelOf(GetParam());
  const std::string adapter = absl::StrCat("--adapter=", kAdapters, "/", GetParam());
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

INSTANTIATE_TEST_SUITE_P(Models, AdapterServedTest,
                         testing::Values("lora-olmoe-clip", "lora-qwen2-shared", "lora-mixtral-window",
                                         "experts-olmoe-clip", "experts-qwen2-shared", "experts-mixtral-window"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{"-", "_"}});
                         });

// Experts that are not all in memory are of a file, into which the adapter is merged, too; a file of the base is not
// mistaken for it.
TEST(AdapterExpertMemoryTest, IsMergedIntoTheExpertFile) {
  const std::vector<Continuation> golden = Golden("experts-olmoe-clip");
  std::vector<std::vector<int32_t>> wanted;
  for (const Continuation& each : golden) wanted.push_back(each.tokens);
  const auto answers = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--threads=1", "--dtype=fp32", "--expert_memory=50%"});
    const auto server = TestServer::Start({.model = "tests/golden/models/olmoe-clip", .flags = std::move(flags)});
    if (server == nullptr) return std::vector<std::vector<int32_t>>();
    return AdapterServedTest::Tokens(server.get(), golden);
  };
  EXPECT_NE(answers({}), wanted);
  EXPECT_EQ(answers({absl::StrCat("--adapter=", kAdapters, "/experts-olmoe-clip")}), wanted);
}

// What a job with lora leaves is served with its base.
class AdapterJobTest : public testing::TestWithParam<std::vector<std::string>> {};
INSTANTIATE_TEST_SUITE_P(Targets, AdapterJobTest,
                         testing::Values(std::vector<std::string>(),
                                         std::vector<std::string>{"gate_up_proj", "down_proj"}),
                         [](const auto& info) { return info.param.empty() ? "Attention" : "Experts"; });

TEST_P(AdapterJobTest, ItsFolderIsAnAdapter) {
  TrainingServer training;
  ASSERT_TRUE(training.Start());
  v1::JobSpec spec = TrainingServer::TinySpec();
  spec.clear_architecture();
  spec.set_base_checkpoint("demo");
  spec.set_steps(6);
  spec.mutable_optimizer()->set_learning_rate(0.05);
  spec.mutable_lora()->set_rank(4);
  spec.mutable_lora()->set_alpha(16);
  for (const std::string& target : GetParam()) spec.mutable_lora()->add_targets(target);
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
TEST(AdapterPatternTest, APatternThatFitsNothingIsRefusedWhenItIsSubmitted) {
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
