#include "workers/train/step/trainer_state.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

jobs::JobSpec Spec() {
  jobs::JobSpec spec;
  spec.base_checkpoint = "model";
  spec.datasets = {"a.bin"};
  spec.steps = 10;
  spec.sequence_length = 8;
  spec.batch_sequences = 4;
  return spec;
}

const std::vector<NamedTokens> kData = {{"a.bin", {.num_tokens = 100, .contents = 0xabc}}};

TEST(TrainerStateTest, ComesBackAsItWas) {
  const TrainerState state = {
      .step = 7, .tokens = 224, .sample = 28, .packing = 4, .shape = ShapeOf(Spec(), "{}", kData)};
  const std::string text = EncodeTrainerState(state);
  EXPECT_EQ(EncodeTrainerState(state), text);
  const absl::StatusOr<TrainerState> back = DecodeTrainerState(text);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->step, 7);
  EXPECT_EQ(back->tokens, 224);
  EXPECT_EQ(back->sample, 28);
  EXPECT_EQ(back->packing, 4);
  EXPECT_EQ(back->shape, state.shape);
}

TEST(TrainerStateTest, SkippedStepsAreThereWhereThereAreSome) {
  TrainerState state = {.step = 7, .shape = ShapeOf(Spec(), "{}", kData)};
  EXPECT_EQ(EncodeTrainerState(state).find("skipped"), std::string::npos) << "as older checkpoints";
  EXPECT_EQ(DecodeTrainerState(EncodeTrainerState(state))->skipped, 0);
  state.skipped = 7;
  EXPECT_EQ(DecodeTrainerState(EncodeTrainerState(state))->skipped, 7);
  state.skipped = 8;
  EXPECT_THAT(std::string(DecodeTrainerState(EncodeTrainerState(state)).status().message()),
              HasSubstr("skipped_steps 8 of 7 steps"));
}

// The record of evaluations, to the bit; a job without any has the file of older programs.
TEST(TrainerStateTest, EvaluationsAreThereWhereThereWereSome) {
  TrainerState state = {.step = 7, .shape = ShapeOf(Spec(), "{}", kData)};
  EXPECT_EQ(EncodeTrainerState(state).find("evaluations"), std::string::npos) << "as older checkpoints";
  EXPECT_EQ(DecodeTrainerState(EncodeTrainerState(state))->evaluations, EvaluationRecord());
  state.evaluations = {.best_step = 6, .best_loss = 1.0 / 3, .counted_loss = 0.1 + 0.2, .stale = 2};
  const std::string text = EncodeTrainerState(state);
  EXPECT_EQ(DecodeTrainerState(text)->evaluations, state.evaluations);
  const auto complaint = [&](const char* from, const char* to) {
    std::string other = text;
    other.replace(other.find(from), std::string(from).size(), to);
    return std::string(DecodeTrainerState(other).status().message());
  };
  EXPECT_THAT(complaint("\"best_step\": 6", "\"best_step\": 7"),
              HasSubstr("evaluations: best_step 7 is outside [1, 7)"));
  EXPECT_THAT(complaint("\"stale\": 2", "\"stale\": -1"), HasSubstr("stale is missing or no count"));
  EXPECT_THAT(complaint("\"best_loss\": 0.3", "\"best_los\": 0.3"), HasSubstr("best_loss is missing or no number"));
}

// The error names each field that changes the training, and no other field.
TEST(TrainerStateTest, SaysWhatDiffers) {
  const JobShape was = ShapeOf(Spec(), "{}", kData);
  const auto problem = [&](const std::function<void(jobs::JobSpec*)>& change) {
    jobs::JobSpec spec = Spec();
    change(&spec);
    const absl::Status status = CompareShapes(was, ShapeOf(spec, "{}", kData));
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(problem([](jobs::JobSpec*) {}), "");
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->steps = 11; }), HasSubstr("this: steps: was 10, is 11"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->dtype = jobs::TrainDType::kBf16; }),
              HasSubstr("dtype: was fp32, is bf16"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->sequence_length = 9; }), HasSubstr("sequence_length: was 8, is 9"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->batch_sequences = 8; }), HasSubstr("batch_sequences: was 4, is 8"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->seed = 3; }), HasSubstr("seed: was 0, is 3"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->balance = jobs::BalanceLoss::kNone; }),
              HasSubstr("balance: was all_layers, is none"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->z_weight = 0.5; }), HasSubstr("z_weight: was 0, is 0.5"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->balance_weight = 0.5; }), HasSubstr("balance_weight: was "));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->capacity_factor = 1.25; }),
              HasSubstr("capacity: was not there, is factor 1.25 of 4 sequences"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->document_mask = true; }),
              HasSubstr("document_mask: was not there, is on"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->packing = jobs::WindowPacking::kBestFit; }),
              HasSubstr("packing: was not there, is best_fit"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) {
                s->dataset_weights = {1, 0.5};
              }),
              HasSubstr("dataset_weights: was not there, is 1 0.5"));
  EXPECT_THAT(problem([](jobs::JobSpec* s) { s->balance_bias_rate = 0.5; }),
              HasSubstr("balance_bias_rate: was not there, is 0.5"));
  for (const auto& change : std::vector<std::function<void(jobs::JobSpec*)>>{
           [](jobs::JobSpec* s) { s->optimizer.schedule.peak += 1e-12; },
           [](jobs::JobSpec* s) { s->optimizer.schedule.shape = jobs::LrShape::kWsd; },
           [](jobs::JobSpec* s) { s->optimizer.schedule.warmup_steps = 2; },
           [](jobs::JobSpec* s) { s->optimizer.schedule.final_fraction = 0.2; },
           [](jobs::JobSpec* s) { s->optimizer.schedule.decay_fraction = 0.3; },
           [](jobs::JobSpec* s) { s->optimizer.beta1 = 0.8; }, [](jobs::JobSpec* s) { s->optimizer.beta2 = 0.8; },
           [](jobs::JobSpec* s) { s->optimizer.epsilon = 1e-7; },
           [](jobs::JobSpec* s) { s->optimizer.weight_decay = 0; },
           [](jobs::JobSpec* s) { s->optimizer.clip_norm = 0; }}) {
    EXPECT_THAT(problem(change), HasSubstr("optimizer: was "));
  }
  EXPECT_EQ(problem([](jobs::JobSpec* s) {
              s->workers = 4;
              s->micro_batch_sequences = 1;
              s->recompute = true;
              s->checkpoints.every_steps = 3;
              s->evaluation = {"b.bin"};
              s->labels = {{"a", "b"}};
            }),
            "");
  EXPECT_THAT(std::string(CompareShapes(was, ShapeOf(Spec(), "{ }", kData)).message()), HasSubstr("config.json: was "));
  EXPECT_THAT(
      std::string(CompareShapes(was, ShapeOf(Spec(), "{}", {})).message()),
      HasSubstr("datasets: was 1 files, is 0 files; datasets[0]: was a.bin, 100 tokens, 0000000000000abc, is not "
                "there"));
}

TEST(TrainerStateTest, AForkKeepsTheFormAndItsPlaceInTheData) {
  const JobShape shape = ShapeOf(Spec(), "{}", kData);
  const auto keys = [&](bool other_data) {
    std::vector<std::string> kept;
    for (const auto& [key, text] : FixedByFork(shape, other_data)) {
      EXPECT_EQ(text, shape.at(key));
      kept.push_back(key);
    }
    return kept;
  };
  EXPECT_THAT(keys(/*other_data=*/false),
              testing::ElementsAre("config.json", "datasets", "datasets[0]", "dtype", "seed", "sequence_length"));
  EXPECT_THAT(keys(/*other_data=*/true), testing::ElementsAre("config.json", "dtype"));
}

TEST(TrainerStateTest, BelievesNothingElse) {
  const std::string good = EncodeTrainerState({.step = 7, .tokens = 9, .sample = 28, .shape = {{"steps", "10"}}});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return DecodeTrainerState(text).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeTrainerState("{}").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeTrainerState("[1]").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeTrainerState(good.substr(0, 40)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(with("\"tokens\": 9", "\"tokens\": -9")));
  EXPECT_TRUE(absl::IsInvalidArgument(with("\"tokens\": 9", "\"tokens\": 9.5")));
  EXPECT_TRUE(absl::IsInvalidArgument(with("\"10\"", "10")));
  EXPECT_TRUE(absl::IsInvalidArgument(with("\"packing\": 1", "\"packing\": 0")));
  EXPECT_TRUE(absl::IsInvalidArgument(with("\"packing\": 1", "\"packing\": 1.5")));
  const absl::Status newer = with("\"version\": 1", "\"version\": 2");
  EXPECT_TRUE(absl::IsFailedPrecondition(newer));
  EXPECT_THAT(std::string(newer.message()), HasSubstr("version 2, this program reads 1"));
}

}  // namespace
}  // namespace switchyard::train
