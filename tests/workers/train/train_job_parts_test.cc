// Jobs that train a part of a model: by rules, or adapters beside it.
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/check.h"
#include "tests/workers/train/parts_job_fixture.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

// Of bf16 numbers, as fp32.
std::string Widened(const std::string& bytes) {
  std::string wide;
  for (size_t i = 0; i < bytes.size(); i += 2) wide.append({'\0', '\0', bytes[i], bytes[i + 1]});
  return wide;
}

class TrainJobPartsTest : public PartsJobFixture {};

TEST_F(TrainJobPartsTest, AdaptersAreSavedAsPeftDoes) {
  const std::vector<RankStory> stories = Run(Adapted(), {.world = 2});
  ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(StepPath(12))) names.insert(entry.path().filename());
  EXPECT_THAT(names, UnorderedElementsAre("MANIFEST.json", "adapter_config.json", "adapter_model.safetensors",
                                          "optimizer-rank00000.safetensors", "tokenizer.json", "trainer_state.json"));
  const nlohmann::json config = nlohmann::json::parse(ReadAll(StepPath(12) + "/adapter_config.json"));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["task_type"], "CAUSAL_LM");
  EXPECT_EQ(config["base_model_name_or_path"], "model");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["target_modules"], nlohmann::json({"q_proj", "v_proj", "o_proj"}));
  const auto tensors = TensorsOf(StepPath(12), "adapter_model.safetensors");
  EXPECT_EQ(tensors.size(), 2u * 3 * 2);  // layers, targets, A and B
  for (const auto& [name, bytes] : tensors) {
    EXPECT_THAT(name,
                testing::MatchesRegex("base_model.model.model.layers.[01].self_attn.[qvo]_proj.lora_[AB].weight"));
    EXPECT_NE(bytes, std::string(bytes.size(), '\0')) << name;  // B, too, has been trained
  }
  EXPECT_EQ(TensorsOf(StepPath(12), "optimizer-rank00000.safetensors").size(), 3 * tensors.size());
  EXPECT_LT(stories[0].steps.back().report.loss, stories[0].steps.front().report.loss);
}

// A folder as PEFT's own of the same adapters: shapes and data types of all tensors, and no key that PEFT does not
// have.
TEST_F(TrainJobPartsTest, AFolderOfAdaptersHasTheFormOfPefts) {
  for (const std::string name :
       {"lora-olmoe-clip", "lora-qwen2-shared", "experts-olmoe-clip", "experts-qwen2-shared"}) {
    ForgetJob();
    UseModel(name.substr(name.find('-') + 1));
    const std::string peft = "tests/golden/adapters/" + name;
    const nlohmann::json wanted = nlohmann::json::parse(ReadAll(peft + "/adapter_config.json"));
    jobs::JobSpec spec = Spec();
    spec.lora = {.rank = wanted["r"].get<int32_t>(),
                 .alpha = wanted["lora_alpha"].get<double>(),
                 .targets = wanted["target_modules"].get<std::vector<std::string>>()};
    if (wanted["target_parameters"].is_array()) {
      for (const nlohmann::json& target : wanted["target_parameters"]) spec.lora.targets.push_back(target);
    }
    ASSERT_EQ(Run(spec, {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished) << name;
    const auto forms = [](const std::string& folder) {
      std::map<std::string, std::string> forms;
      const absl::StatusOr<ModelDir> dir = ModelDir::Open(folder);
      SY_CHECK_OK(dir.status());
      const auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, "adapter_model.safetensors");
      SY_CHECK_OK(file.status());
      for (const auto& [tensor, entry] : (*file)->tensors()) forms[tensor] = entry.dtype + entry.ShapeString();
      return forms;
    };
    EXPECT_EQ(forms(StepPath(12)), forms(peft)) << name;
    const nlohmann::json config = nlohmann::json::parse(ReadAll(StepPath(12) + "/adapter_config.json"));
    for (const auto& [key, value] : config.items()) {
      ASSERT_TRUE(wanted.contains(key)) << key;
      EXPECT_TRUE(value == wanted[key] || key == "base_model_name_or_path") << name << ": " << key << ": " << value;
    }
  }
}

TEST_F(TrainJobPartsTest, AnInterruptedAttemptEndsWithTheSameBits) {
  for (const jobs::JobSpec& spec : {Adapted(), OfExperts(), Ruled()}) {
    for (const int world : {1, 2}) {
      const std::map<std::string, std::string> whole = Undisturbed(spec, world);
      EXPECT_TRUE(Interrupted(spec, world) == whole);
    }
  }
}

TEST_F(TrainJobPartsTest, AdaptersGoOnWithTheirBaseAlone) {
  AttemptOptions first;
  first.on_step = [](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
    if (progress.step == 6) job->Stop(jobs::StopKind::kSave);
  };
  Run(Adapted(), first);
  const std::string path = root_.path() + "/checkpoints/model/model.safetensors";
  std::string bytes = ReadAll(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  root_.Write("checkpoints/model/model.safetensors", bytes);
  ExpectEnd(Run(Adapted(), {.attempt = 2}), jobs::TrainOutcome::kBlocked, absl::StatusCode::kFailedPrecondition,
            "base_weights: was ");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  root_.Write("checkpoints/model/model.safetensors", bytes);
  EXPECT_EQ(Run(Adapted(), {.attempt = 3})[0].end.outcome, jobs::TrainOutcome::kFinished);
}

// A base with a manifest is summed by it; adapters of a checkpoint of ours go on as those of another folder do.
TEST_F(TrainJobPartsTest, TheBaseMayBeACheckpointOfOurs) {
  ASSERT_EQ(Run(Ruled(), {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
  std::filesystem::rename(JobPath(), root_.path() + "/checkpoints/first");
  jobs::JobSpec spec = Adapted();
  spec.base_checkpoint = "first/step-00000012";
  const std::map<std::string, std::string> whole = Undisturbed(spec, 2);
  EXPECT_TRUE(Interrupted(spec, 2) == whole);
}

TEST_F(TrainJobPartsTest, AForkTrainsWhatItsParentTrains) {
  const auto fork = [&](const jobs::JobSpec& parent, const jobs::JobSpec& spec, int world = 1) {
    ForgetJob();
    EXPECT_EQ(Run(parent, {.world = world})[0].end.outcome, jobs::TrainOutcome::kFinished);
    std::filesystem::remove_all(StepPath(12));
    std::filesystem::remove(JobPath("LATEST"));
    AttemptOptions second = {.world = world, .attempt = 2};
    second.origin = jobs::ForkOrigin{.job = "parent", .step = 8, .attempts = 1};
    return Run(spec, second);
  };
  for (const auto& [parent, world] :
       {std::pair(Adapted(), 1), std::pair(OfExperts(), 1), std::pair(OfExperts(), 2), std::pair(Ruled(), 1)}) {
    ForgetJob();
    const std::map<std::string, std::string> whole = Undisturbed(parent, world);
    ASSERT_EQ(fork(parent, parent, world)[0].end.outcome, jobs::TrainOutcome::kFinished);
    EXPECT_TRUE(FilesOfStep(12) == whole) << world;
  }
  jobs::JobSpec other = Adapted();
  other.lora.rank = 5;
  ExpectEnd(fork(Adapted(), other), jobs::TrainOutcome::kBlocked, absl::StatusCode::kFailedPrecondition,
            "lora: was rank 4, alpha 8, targets q_proj v_proj o_proj, is rank 5");
  other = Ruled();
  other.parameters.pop_back();
  ExpectEnd(fork(Ruled(), other), jobs::TrainOutcome::kBlocked, absl::StatusCode::kFailedPrecondition,
            "parameters: was *.experts.1.* frozen; ");
}

TEST_F(TrainJobPartsTest, AForkMayHaveOtherRates) {
  ASSERT_EQ(Run(Ruled(), {})[0].end.outcome, jobs::TrainOutcome::kFinished);
  const std::map<std::string, std::string> whole = FilesOfStep(12);
  std::filesystem::remove_all(StepPath(12));
  std::filesystem::remove(JobPath("LATEST"));
  jobs::JobSpec other = Ruled();
  other.parameters[3].rate = 4;
  other.parameters[3].weight_decay = 0.25;
  const std::vector<RankStory> stories =
      Run(other, {.attempt = 2, .origin = jobs::ForkOrigin{.job = "parent", .step = 8, .attempts = 1}});
  ASSERT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
  EXPECT_EQ(stories[0].start_step, 8);
  EXPECT_FALSE(FilesOfStep(12) == whole);
  EXPECT_THAT(ReadAll(StepPath(12) + "/trainer_state.json"),
              HasSubstr(R"("rates": "*norm* rate 4 weight_decay 0.25")"));
  // (Only its beginning is a fork.)
  ExpectEnd(Run(Ruled(), {.attempt = 3}), jobs::TrainOutcome::kBlocked, absl::StatusCode::kFailedPrecondition,
            "rates: was *norm* rate 4 weight_decay 0.25, is *norm* rate 0.5");
}

TEST_F(TrainJobPartsTest, FrozenWeightsAreTheBasesBitForBit) {
  const std::map<std::string, std::string> base = TensorsOf(root_.path() + "/checkpoints/model", "model.safetensors");
  for (const int world : {1, 2}) {
    ASSERT_EQ(Run(Ruled(), {.world = world})[0].end.outcome, jobs::TrainOutcome::kFinished);
    std::map<std::string, std::string> after, optimizer;
    for (int r = 0; r < world; ++r) {
      after.merge(TensorsOf(StepPath(12), absl::StrCat("model-0000", r + 1, "-of-0000", world, ".safetensors")));
      optimizer.merge(TensorsOf(StepPath(12), absl::StrCat("optimizer-rank0000", r, ".safetensors")));
    }
    EXPECT_EQ(after.size(), base.size());
    int frozen = 0;
    for (const auto& [name, bytes] : base) {
      const bool fixed = absl::StrContains(name, ".experts.1.") ||
                         absl::StrContains(name, "layers.0.self_attn.k_proj") || name == "model.embed_tokens.weight";
      EXPECT_EQ(after.at(name) == Widened(bytes), fixed) << name;
      EXPECT_EQ(optimizer.count(absl::StrCat(name, ".master")), 1u) << name;
      const bool alone = fixed && !absl::StrContains(name, "k_proj");
      EXPECT_EQ(optimizer.count(absl::StrCat(name, ".exp_avg")), alone ? 0u : 1u) << name;
      frozen += fixed ? 1 : 0;
    }
    EXPECT_GT(frozen, 4);
    ForgetJob();
  }
}

TEST_F(TrainJobPartsTest, RefusesRulesThatFitNothing) {
  jobs::JobSpec spec = Ruled();
  spec.parameters[1].pattern = "*.k_projection.*";
  ExpectEnd(Run(spec, {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "parameters[1]: \"*.k_projection.*\" fits no weight of ");
  spec.parameters = {{.pattern = "*", .frozen = true}};
  ExpectEnd(Run(spec, {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "all weights are frozen");
  EXPECT_FALSE(std::filesystem::exists(JobPath(checkpoint::StepFolder(4))));
}

TEST_F(TrainJobPartsTest, AdaptersTrainInEveryMode) {
  for (const jobs::JobSpec& adapted : {Adapted(), OfExperts()}) {
    const std::map<std::string, std::string> whole = Undisturbed(adapted, 2);
    for (const jobs::CommMode mode :
         {jobs::CommMode::kFair, jobs::CommMode::kPriorityTicketed, jobs::CommMode::kPartition}) {
      jobs::JobSpec spec = adapted;
      spec.communication.mode = mode;
      EXPECT_TRUE(Undisturbed(spec, 2) == whole);
    }
    jobs::JobSpec again = adapted;
    again.recompute = true;
    EXPECT_TRUE(Undisturbed(again, 2) == whole);
  }
}

TEST_F(TrainJobPartsTest, RulesTrainInAnotherModeToo) {
  const std::map<std::string, std::string> whole = Undisturbed(Ruled(), 2);
  jobs::JobSpec spec = Ruled();
  spec.communication.mode = jobs::CommMode::kFair;
  EXPECT_TRUE(Undisturbed(spec, 2) == whole);
}

// Sequences of several documents, two micro-batches a step: an interrupted job ends with the same bits.
TEST_F(TrainJobPartsTest, AdaptersTrainOnDocuments) {
  WriteTokens("a.bin", 0, 400, 256, true, {0, 7, 30, 200});
  jobs::JobSpec spec = Adapted();
  const std::map<std::string, std::string> joined = Undisturbed(spec, 2);
  spec.document_mask = true;
  const std::map<std::string, std::string> whole = Undisturbed(spec, 2);
  EXPECT_FALSE(whole.at("adapter_model.safetensors") == joined.at("adapter_model.safetensors"));
  EXPECT_TRUE(Interrupted(spec, 2) == whole);
}

}  // namespace
}  // namespace switchyard::train
