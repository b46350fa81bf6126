// Jobs with dropout: by their spec or by config.json, over attempts, ranks and forks.
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/workers/train/job_fixture.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/train/job/setup/job_noise.h"

namespace switchyard::train {
namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class TrainJobDropoutTest : public JobFixture {
 protected:
  void Set(const std::string& key, double value) {
    ordered_json config = ordered_json::parse(ReadAll(root_.path() + "/checkpoints/model/config.json"));
    config[key] = value;
    root_.Write("checkpoints/model/config.json", config.dump(1));
  }
  jobs::JobSpec Dropping() const {
    jobs::JobSpec spec = Spec();
    spec.dropout = {.embedding = 0.1, .hidden = 0.2, .attention = 0.3};
    spec.router_jitter = 0.1;
    return spec;
  }
  // Stops after some steps and goes on; the files of the last step.
  std::map<std::string, std::string> Interrupted(const jobs::JobSpec& spec, int world, jobs::StopKind kind) {
    AttemptOptions first = {.world = world};
    first.on_step = [&](TrainJob* job, comm::Communicator*, const StepProgress& progress) {
      if (progress.step == 6) job->Stop(kind);
    };
    EXPECT_EQ(Run(spec, first)[0].end.outcome, jobs::TrainOutcome::kStopped);
    const std::vector<RankStory> second = Run(spec, {.world = world, .threads = 2, .attempt = 2});
    EXPECT_EQ(second[0].end.outcome, jobs::TrainOutcome::kFinished) << second[0].end.status;
    if (kind == jobs::StopKind::kSave) {
      EXPECT_EQ(second[0].start_step, 6);
    } else {
      EXPECT_LT(second[0].start_step, 6) << "from the newest checkpoint that was complete";
    }
    std::map<std::string, std::string> files = FilesOfStep(spec.steps);
    ForgetJob();
    return files;
  }
  std::vector<double> Losses(const jobs::JobSpec& spec, int world) {
    const std::vector<RankStory> stories = Run(spec, {.world = world});
    EXPECT_EQ(stories[0].end.outcome, jobs::TrainOutcome::kFinished) << stories[0].end.status;
    std::vector<double> losses;
    for (const StepProgress& step : stories[0].steps) losses.push_back(step.report.loss);
    for (const EvaluationSeen& each : stories[0].evaluations) losses.push_back(each.loss);
    notes_ = stories[0].notes;
    ForgetJob();
    return losses;
  }

  std::vector<std::string> notes_;  // of the last Losses
};

// Also by a stop without a checkpoint, after which steps are done again.
TEST_F(TrainJobDropoutTest, AnInterruptedJobHasTheBitsOfAnUndisturbedOne) {
  jobs::JobSpec adapted = Dropping();
  adapted.lora = {.rank = 4, .targets = {"q_proj", "o_proj"}, .dropout = 0.25};
  for (const jobs::JobSpec& spec : {Dropping(), adapted}) {
    const auto whole = Undisturbed(spec, 2);
    EXPECT_TRUE(Interrupted(spec, 2, jobs::StopKind::kSave) == whole);
    EXPECT_TRUE(Interrupted(spec, 2, jobs::StopKind::kNow) == whole);
  }
}

// Of windows of whole documents, too, whose ranks have other numbers of rows.
TEST_F(TrainJobDropoutTest, NumbersOfWorkersAndMicroBatchesDifferByRounding) {
  WriteTokens("a.bin", 3, 900, 256, true, {0, 5, 9, 30, 33, 70, 75, 200, 204, 300, 310, 500, 508, 700});
  for (const jobs::WindowPacking packing : {jobs::WindowPacking::kConcatenate, jobs::WindowPacking::kBestFit}) {
    jobs::JobSpec spec = Dropping();
    spec.document_mask = true;
    spec.packing = packing;
    spec.balance_weight = 0;  // that is each micro-batch's own
    spec.optimizer.schedule.peak = 1e-4;
    spec.micro_batch_sequences = 0;
    const std::vector<double> alone = Losses(spec, 1);
    for (const auto& [world, micro] : {std::make_pair(2, 0), {4, 0}, {2, 1}}) {
      spec.micro_batch_sequences = micro;
      const std::vector<double> other = Losses(spec, world);
      ASSERT_EQ(other.size(), alone.size());
      for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(other[i], alone[i], 1e-4 * alone[i]) << world << ", " << i;
    }
  }
}

TEST_F(TrainJobDropoutTest, ConfigJsonIsObeyedWhereTheSpecSaysNothing) {
  const std::vector<double> without = Losses(Spec(), 2);
  jobs::JobSpec spec = Spec();
  spec.dropout.attention = 0.3;
  const std::vector<double> said = Losses(spec, 2);
  EXPECT_THAT(notes_, Contains("dropout: attention 0.3"));
  EXPECT_NE(said, without);
  Set("attention_dropout", 0.3);
  EXPECT_EQ(Losses(Spec(), 2), said);
  EXPECT_THAT(notes_, Contains("dropout: attention 0.3 (config.json: attention_dropout)"));
  spec.dropout.attention = 0;
  EXPECT_EQ(Losses(spec, 2), without) << "0 switches it off";
  EXPECT_THAT(notes_, Contains("dropout: attention 0 (config.json: attention_dropout 0.3)"));
  Set("attention_dropout", 1);
  const std::vector<RankStory> refused = Run(Spec(), {.world = 2});
  ExpectEnd(refused, jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "config.json: attention_dropout: 1 is outside [0, 1), which is refused also where the job gives a rate");
  ExpectEnd(Run(spec, {.world = 2}), jobs::TrainOutcome::kFailed, absl::StatusCode::kInvalidArgument,
            "config.json: attention_dropout: 1 is outside [0, 1)");
}

TEST_F(TrainJobDropoutTest, EachFamilyHasItsKeys) {
  struct Case {
    std::string model;
    std::map<std::string, double> keys;
    std::string note;
  };
  for (const Case& each :
       std::vector<Case>{{"mixtral-gqa",
                          {{"attention_dropout", 0.25}, {"router_jitter_noise", 0.5}},
                          "dropout: attention 0.25 (config.json: attention_dropout), router jitter 0.5 (config.json: "
                          "router_jitter_noise)"},
                         {"gpt2-top2",
                          {{"embd_pdrop", 0.125}, {"resid_pdrop", 0.25}, {"attn_pdrop", 0.5}},
                          "dropout: embedding 0.125 (config.json: embd_pdrop), hidden 0.25 (config.json: resid_pdrop), "
                          "attention 0.5 (config.json: attn_pdrop)"}}) {
    UseModel(each.model);
    for (const auto& [key, value] : each.keys) Set(key, value);
    EXPECT_FALSE(Losses(Spec(), 1).empty());
    EXPECT_THAT(notes_, Contains(each.note));
  }
  Set("attention_dropout", 0.1);  // GPT-2 calls it otherwise
  ExpectEnd(
      Run(Spec(), {.world = 1}), jobs::TrainOutcome::kFailed, absl::StatusCode::kUnimplemented,
      "attention_dropout: 0.1, but models of gpt2_moe have no such dropout or noise; set it to 0 in this config.json "
      "(a rate of the job that is 0 is not enough), and give the rates that you want by the job's dropout");
}

// Each rate by itself, of the spec and of config.json, changes a job's first loss, and each to another one.
TEST_F(TrainJobDropoutTest, EachRateReachesItsPlace) {
  struct Rate {
    std::string model, key;
    std::function<std::optional<double>&(jobs::JobSpec*)> of;
  };
  const auto embedding = [](jobs::JobSpec* spec) -> std::optional<double>& { return spec->dropout.embedding; };
  const auto hidden = [](jobs::JobSpec* spec) -> std::optional<double>& { return spec->dropout.hidden; };
  const auto attention = [](jobs::JobSpec* spec) -> std::optional<double>& { return spec->dropout.attention; };
  const auto jitter = [](jobs::JobSpec* spec) -> std::optional<double>& { return spec->router_jitter; };
  jobs::JobSpec plain = Spec();
  plain.steps = 2;
  plain.optimizer.schedule.warmup_steps = 0;
  std::map<std::string, double> first;  // losses by model and key
  for (const Rate& rate : std::vector<Rate>{{"gpt2-top2", "embd_pdrop", embedding},
                                            {"gpt2-top2", "resid_pdrop", hidden},
                                            {"gpt2-top2", "attn_pdrop", attention},
                                            {"mixtral-gqa", "attention_dropout", attention},
                                            {"mixtral-gqa", "router_jitter_noise", jitter}}) {
    UseModel(rate.model);
    first[rate.model] = Losses(plain, 1).at(0);
    jobs::JobSpec spec = plain;
    rate.of(&spec) = 0.25;
    const std::vector<double> said = Losses(spec, 1);
    Set(rate.key, 0.25);
    EXPECT_EQ(Losses(plain, 1), said) << rate.key;
    first[absl::StrCat(rate.model, " ", rate.key)] = said.at(0);
  }
  std::set<double> different;
  for (const auto& [name, loss] : first) EXPECT_TRUE(different.insert(loss).second) << name;
}

// With equal rates nothing else would tell embedding from hidden.
TEST_F(TrainJobDropoutTest, RatesOfASpecKeepTheirNames) {
  jobs::JobSpec spec = Dropping();
  spec.router_jitter = 0.4;
  spec.lora.dropout = 0.5;
  const model::NoiseRates rates = NoiseRatesOf(spec);
  EXPECT_EQ(rates.embedding, 0.1);
  EXPECT_EQ(rates.hidden, 0.2);
  EXPECT_EQ(rates.attention, 0.3);
  EXPECT_EQ(rates.router_jitter, 0.4);
  EXPECT_EQ(rates.adapters, 0.5);
}

// (An adapter adds nothing before the first step, as its B is 0.)
TEST_F(TrainJobDropoutTest, AdaptersRateChangesTheSecondLoss) {
  jobs::JobSpec spec = Spec();
  spec.lora = {.rank = 4, .targets = {"q_proj", "v_proj"}};
  spec.steps = 3;
  spec.optimizer.schedule.warmup_steps = 0;
  const std::vector<double> without = Losses(spec, 1);
  spec.lora.dropout = 0.25;
  const std::vector<double> with = Losses(spec, 1);
  EXPECT_EQ(with.at(0), without.at(0));
  EXPECT_NE(with.at(1), without.at(1));
}

// All sequences are the same, so that their order, which the seed draws, too, changes nothing.
TEST_F(TrainJobDropoutTest, AnotherSeedDropsOthers) {
  data_ = {{false, "same.bin"}};
  WriteTokens("same.bin", 0, 12 * 40, 1);
  jobs::JobSpec spec = Spec();
  spec.steps = 1;
  spec.optimizer.schedule.warmup_steps = 0;
  jobs::JobSpec other = spec;
  other.seed = spec.seed + 1;
  const double without = Losses(spec, 1).at(0);
  EXPECT_EQ(Losses(other, 1).at(0), without);
  spec.dropout.hidden = other.dropout.hidden = 0.25;
  const double with = Losses(spec, 1).at(0);
  EXPECT_NE(with, without);
  EXPECT_EQ(Losses(spec, 1).at(0), with);
  EXPECT_NE(Losses(other, 1).at(0), with);
}

TEST_F(TrainJobDropoutTest, ACheckpointSaysItsRates) {
  ASSERT_EQ(Run(Dropping(), {.world = 2})[0].end.outcome, jobs::TrainOutcome::kFinished);
  const nlohmann::json state = nlohmann::json::parse(FilesOfStep(12).at("trainer_state.json"));
  EXPECT_EQ(state["shape"]["dropout"],
            "embedding 0.10000000000000001, hidden 0.20000000000000001, attention 0.29999999999999999, router_jitter "
            "0.10000000000000001");
  // (A fork may have others: train_job_fork_test.cc.)
  jobs::JobSpec other = Dropping();
  other.dropout.hidden = 0.5;
  ExpectEnd(Run(other, {.world = 2, .attempt = 2}), jobs::TrainOutcome::kBlocked, absl::StatusCode::kFailedPrecondition,
            "dropout: was embedding");
}

TEST_F(TrainJobDropoutTest, PeftsFolderHasTheRate) {
  jobs::JobSpec spec = Spec();
  spec.lora = {.rank = 4, .targets = {"q_proj"}, .dropout = 0.25};
  EXPECT_EQ(nlohmann::json::parse(Undisturbed(spec, 2).at("adapter_config.json"))["lora_dropout"], 0.25);
}

TEST_F(TrainJobDropoutTest, RestoredRowsHaveTheSameBits) {
  const auto kept = Undisturbed(Dropping(), 2);
  jobs::JobSpec spec = Dropping();
  spec.restore = {.input = pipeline::InputRestore::kResend, .hidden = pipeline::HiddenRestore::kRecompute};
  EXPECT_TRUE(Undisturbed(spec, 2) == kept);
  spec = Dropping();
  spec.recompute = true;
  EXPECT_TRUE(Undisturbed(spec, 2) == kept);
}

}  // namespace
}  // namespace switchyard::train
