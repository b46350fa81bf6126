// The spec of a fork: the parent's with changes by mask or by presence; what may not change; where its data begin.
#include "server/jobs/fork/fork_spec.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"

namespace switchyard::server {
namespace {

using google::protobuf::FieldMask;
using testing::ElementsAre;
using testing::HasSubstr;

jobs::JobSpec ParentSpec() {
  jobs::JobSpec spec;
  spec.architecture = "demo";
  spec.datasets = {"a.bin", "b.bin"};
  spec.steps = spec.optimizer.schedule.total_steps = 20;
  spec.sequence_length = 16;
  spec.batch_sequences = 4;
  spec.document_mask = true;
  spec.z_weight = 0.5;
  spec.seed = 9;
  spec.optimizer.schedule.peak = 0.25;
  spec.optimizer.schedule.warmup_steps = 5;
  spec.labels = {{"a", "b"}};
  return spec;
}

jobs::JobSpec Forked(const v1::JobSpec& changes, std::initializer_list<const char*> paths = {}) {
  FieldMask mask;
  for (const char* path : paths) mask.add_paths(path);
  const absl::StatusOr<jobs::JobSpec> spec = ForkedSpec(ParentSpec(), changes, mask);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.value_or(jobs::JobSpec());
}

TEST(ForkSpec, WithoutChangesItIsTheParents) { EXPECT_EQ(Forked({}), ParentSpec()); }

TEST(ForkSpec, WithoutAMaskWhatIsSetReplaces) {
  v1::JobSpec changes;
  changes.set_steps(30);
  changes.add_datasets("c.bin");
  changes.mutable_optimizer()->set_learning_rate(0.125);
  (*changes.mutable_labels())["c"] = "d";
  jobs::JobSpec wanted = ParentSpec();
  wanted.steps = wanted.optimizer.schedule.total_steps = 30;
  wanted.datasets = {"c.bin"};
  wanted.optimizer.schedule.peak = 0.125;
  wanted.labels = {{"c", "d"}};
  EXPECT_EQ(Forked(changes), wanted);
}

TEST(ForkSpec, NamesOfSetsAreThoseOfTheFiles) {
  jobs::JobSpec parent = ParentSpec();
  parent.evaluation = {"a.bin", "b.bin"};
  const auto names = [&](const v1::JobSpec& changes, std::initializer_list<const char*> paths = {}) {
    FieldMask mask;
    for (const char* path : paths) mask.add_paths(path);
    const absl::StatusOr<jobs::JobSpec> spec = ForkedSpec(parent, changes, mask);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec.ok() ? spec->evaluation_names : std::vector<std::string>();
  };
  EXPECT_THAT(names({}), ElementsAre()) << "a parent from before sets had names";
  v1::JobSpec changes;
  changes.add_evaluation("c.bin");
  EXPECT_THAT(names(changes), ElementsAre("c"));
  parent.evaluation_names = {"x", "y"};
  EXPECT_THAT(names({}), ElementsAre("x", "y"));
  EXPECT_THAT(names(changes), ElementsAre("c")) << "those of the parent's files are none of these";
  EXPECT_THAT(names(changes, {"evaluation"}), ElementsAre("c"));
  changes.add_evaluation_names("z");
  EXPECT_THAT(names(changes), ElementsAre("z"));
  EXPECT_THAT(names({}, {"evaluation_names"}), ElementsAre("a", "b")) << "unset again";
}

TEST(ForkSpec, StepsAndEpochsAreInsteadOfEachOther) {
  v1::JobSpec changes;
  changes.set_epochs(2);
  const jobs::JobSpec spec = Forked(changes);
  EXPECT_EQ(spec.epochs, 2);
  EXPECT_EQ(spec.steps, 0);
  const absl::StatusOr<jobs::JobSpec> back = ForkedSpec(spec,
                                                        [] {
                                                          v1::JobSpec steps;
                                                          steps.set_steps(7);
                                                          return steps;
                                                        }(),
                                                        {});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->steps, 7);
  EXPECT_EQ(back->epochs, 0);
}

// Workers count epochs from the job's first sequence, so other ones would end early or before the fork begins.
TEST(ForkSpec, EpochsAreTheParentsOrSteps) {
  Job parent = {.id = "job-1", .spec = ParentSpec()};
  parent.spec.steps = 0;
  parent.spec.epochs = 2;
  parent.progress = jobs::TrainProgress{.step = 30, .total_steps = 40};
  EXPECT_TRUE(CheckEpochs(parent, parent.spec, 30, 0).ok());
  EXPECT_TRUE(CheckEpochs(parent, ParentSpec(), 30, 3).ok()) << "of steps";
  const auto refusal = [&](const std::function<void(jobs::JobSpec*)>& change, int64_t step, int64_t skip) {
    jobs::JobSpec spec = parent.spec;
    change(&spec);
    return std::string(CheckEpochs(parent, spec, step, skip).message());
  };
  const auto same = [](jobs::JobSpec*) {};
  EXPECT_THAT(refusal(same, 40, 0), HasSubstr("2, which are 40 steps, but the fork begins after step 40"));
  for (const auto& change : std::vector<std::function<void(jobs::JobSpec*)>>{
           [](jobs::JobSpec* s) { s->epochs = 3; }, [](jobs::JobSpec* s) { s->datasets = {"c.bin"}; },
           [](jobs::JobSpec* s) { s->batch_sequences = 8; }, [](jobs::JobSpec* s) { s->seed = 1; },
           [](jobs::JobSpec* s) { s->packing = jobs::WindowPacking::kBestFit; }}) {
    EXPECT_THAT(refusal(change, 30, 0), HasSubstr("counts steps (the parent has 40) instead"));
  }
  EXPECT_THAT(refusal(same, 30, 1), HasSubstr("counts steps (the parent has 40) instead"));
}

// Its checkpoint has moments of those alone.
TEST(ForkSpec, TrainsTheWeightsThatItsParentTrains) {
  jobs::JobSpec parent = ParentSpec();
  parent.architecture.clear();
  parent.base_checkpoint = "demo";
  parent.parameters = {{.pattern = "*lora_B*", .rate = 2}};
  parent.lora = {.rank = 4};
  const auto forked = [&](const std::function<void(v1::JobSpec*)>& change) {
    v1::JobSpec changes;
    change(&changes);
    return ForkedSpec(parent, changes, {});
  };
  const auto same = forked([](v1::JobSpec* m) {
    m->set_steps(30);
    m->mutable_lora()->set_rank(4);
  });
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->lora, parent.lora);
  EXPECT_EQ(same->parameters, parent.parameters);
  // Defaults that are said, and another order, are no change: the checkpoint has the parent's words.
  const auto said = forked([](v1::JobSpec* m) {
    m->mutable_lora()->set_alpha(4);
    for (const char* target : {"o_proj", "v_proj", "k_proj", "q_proj"}) m->mutable_lora()->add_targets(target);
  });
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->lora, parent.lora);
  const auto dropping = forked([](v1::JobSpec* m) {
    m->mutable_lora()->set_dropout(0.5);
    m->mutable_dropout()->set_attention(0);
    m->set_router_jitter(0.25);
  });
  ASSERT_TRUE(dropping.ok()) << dropping.status();
  EXPECT_EQ(dropping->lora, jobs::LoraSpec({.rank = 4, .dropout = 0.5}));
  EXPECT_EQ(dropping->dropout, jobs::DropoutSpec({.attention = 0}));
  EXPECT_EQ(dropping->router_jitter, 0.25);
  const auto faster = forked([](v1::JobSpec* m) {
    m->add_parameters()->set_pattern("*lora_B*");
    m->mutable_parameters(0)->set_rate(16);
    m->mutable_parameters(0)->set_weight_decay(0);
  });
  ASSERT_TRUE(faster.ok()) << faster.status();
  EXPECT_EQ(faster->parameters,
            (std::vector<jobs::ParameterRule>{{.pattern = "*lora_B*", .rate = 16, .weight_decay = 0}}));
  for (const auto& change : std::vector<std::function<void(v1::JobSpec*)>>{
           [](v1::JobSpec* m) { m->mutable_lora()->set_rank(8); },
           [](v1::JobSpec* m) { m->mutable_lora()->set_alpha(8); },
           [](v1::JobSpec* m) { m->mutable_lora()->add_targets("q_proj"); },
           [](v1::JobSpec* m) { m->add_parameters()->set_pattern("*lora_A*"); },
           [](v1::JobSpec* m) {
             m->add_parameters()->set_pattern("*lora_B*");
             m->mutable_parameters(0)->set_frozen(true);
           }}) {
    const absl::Status status = forked(change).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("a fork has its parent's patterns and adapters, as its checkpoint has moments of what they train"));
  }
}

TEST(ForkSpec, DocumentsThatAreJoinedAreNotPackedWhole) {
  jobs::JobSpec parent = ParentSpec();
  parent.packing = jobs::WindowPacking::kBestFit;
  v1::JobSpec changes;
  changes.set_document_mask(v1::DOCUMENT_MASK_OFF);
  const absl::StatusOr<jobs::JobSpec> spec = ForkedSpec(parent, changes, {});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->packing, jobs::WindowPacking::kConcatenate);
}

TEST(ForkSpec, AMaskAlsoNamesZerosAndDefaults) {
  v1::JobSpec changes;
  changes.set_steps(30);  // not in the mask
  changes.mutable_optimizer()->set_clip_norm(0);
  jobs::JobSpec wanted = ParentSpec();
  wanted.z_weight = 0;
  wanted.optimizer.schedule.warmup_steps = 0;
  wanted.optimizer.schedule.peak = jobs::LrSchedule().peak;
  wanted.optimizer.clip_norm = 0;
  wanted.labels = {};
  EXPECT_EQ(Forked(changes,
                   {"z_weight", "optimizer.warmup_steps", "optimizer.learning_rate", "optimizer.clip_norm", "labels"}),
            wanted);
  // Unset again, it is what a submitted spec has.
  EXPECT_TRUE(Forked({}, {"document_mask"}).document_mask);
  changes.set_document_mask(v1::DOCUMENT_MASK_OFF);
  EXPECT_FALSE(Forked(changes, {"document_mask"}).document_mask);
}

std::string Refused(const std::function<void(v1::JobSpec*)>& change, const FieldMask& mask = {}) {
  v1::JobSpec changes;
  change(&changes);
  const absl::Status status = ForkedSpec(ParentSpec(), changes, mask).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(rpc::ReasonOf(status), v1::BAD_FIELD);
  return std::string(status.message());
}

TEST(ForkSpec, AnotherModelOrPrecisionIsRefusedWithBothValues) {
  EXPECT_EQ(Refused([](auto* c) { c->set_architecture("other"); }),
            "spec.architecture: the parent's is \"demo\", wanted is \"other\": a fork has its parent's model and "
            "precision, as its checkpoint has");
  EXPECT_THAT(Refused([](auto* c) { c->set_base_checkpoint("base"); }),
              HasSubstr("spec.base_checkpoint: the parent's is \"\", wanted is \"base\""));
  EXPECT_THAT(Refused([](auto* c) { c->set_precision(v1::TRAIN_PRECISION_BF16); }),
              HasSubstr("spec.precision: the parent's is TRAIN_PRECISION_FP32, wanted is TRAIN_PRECISION_BF16"));
}

TEST(ForkSpec, PreferencesStayAndMayHaveAnotherBeta) {
  jobs::JobSpec parent = ParentSpec();
  parent.architecture.clear();
  parent.base_checkpoint = "base";
  parent.packing = jobs::WindowPacking::kBestFit;
  v1::JobSpec changes;
  changes.mutable_dpo()->set_beta(0.5);
  EXPECT_THAT(std::string(ForkedSpec(parent, changes, {}).status().message()),
              HasSubstr("spec.dpo: the parent has no dpo, the fork has dpo: a fork trains as its parent does; begin a "
                        "new job with the parent's checkpoint as its base_checkpoint"));
  v1::JobSpec smoothing;
  smoothing.mutable_dpo()->set_label_smoothing(0.1);
  EXPECT_THAT(std::string(ForkedSpec(parent, smoothing, {}).status().message()),
              HasSubstr("dpo.label_smoothing: 0.1, but dpo.beta is 0, so the job has no preferences"));
  parent.dpo = {.beta = 0.1, .label_smoothing = 0.2};
  const absl::StatusOr<jobs::JobSpec> forked = ForkedSpec(parent, changes, {});
  ASSERT_TRUE(forked.ok()) << forked.status();
  EXPECT_EQ(forked->dpo, (jobs::DpoSpec{.beta = 0.5, .label_smoothing = 0.2}));
  FieldMask all;
  all.add_paths("dpo");
  EXPECT_THAT(std::string(ForkedSpec(parent, {}, all).status().message()),
              HasSubstr("spec.dpo: the parent has dpo, the fork has no dpo"));
}

TEST(ForkSpec, WhatSubmitRefusesIsRefused) {
  EXPECT_THAT(Refused([](auto* c) { c->set_steps(-1); }), HasSubstr("steps: -1 is outside"));
  EXPECT_THAT(Refused([](auto* c) { c->set_balance(static_cast<v1::BalanceLoss>(9)); }), HasSubstr("spec.balance"));
  FieldMask mask;
  mask.add_paths("optimizer.speed");
  EXPECT_EQ(Refused([](auto*) {}, mask), "mask: \"optimizer.speed\" names no field of a JobSpec");
  const absl::Status done = CheckStepsLeft(ParentSpec(), 20);
  EXPECT_EQ(done.message(), "spec.steps: 20, but the fork begins after step 20: nothing is left to do");
  EXPECT_TRUE(CheckStepsLeft(ParentSpec(), 19).ok());
}

TEST(ForkSpec, DataGoOnUnlessTheyAreOthers) {
  Job parent;
  parent.id = "job-1";
  parent.spec = ParentSpec();
  parent.attempt = 3;
  const auto origin = [&](const std::function<void(jobs::JobSpec*)>& change, int64_t step = 8) {
    jobs::JobSpec spec = ParentSpec();
    change(&spec);
    return ForkOriginOf(parent, spec, step, /*skip_batches=*/0);
  };
  EXPECT_EQ(origin([](auto* s) { s->batch_sequences = 8; }),
            (jobs::ForkOrigin{.job = "job-1", .step = 8, .attempts = 3}));
  EXPECT_TRUE(origin([](auto* s) { s->datasets = {"b.bin", "a.bin"}; }).other_data);
  EXPECT_TRUE(origin([](auto* s) { s->seed = 1; }).other_data);
  EXPECT_TRUE(origin([](auto* s) { s->sequence_length = 8; }).other_data);
  EXPECT_EQ(ForkOriginOf(parent, ParentSpec(), 8, 3).skipped_sequences, 12);
  EXPECT_EQ(DescribeFork({.job = "job-1", .step = 8, .other_data = true, .skipped_sequences = 12}),
            "forked from job-1 at step 8; its data begin at their first sequence; 12 sequences are passed over");
  // The checkpoint from which the parent was forked has the grandparent's place in the data.
  parent.origin =
      jobs::ForkOrigin{.job = "job-0", .step = 8, .attempts = 1, .other_data = true, .skipped_sequences = 4};
  EXPECT_TRUE(origin([](auto*) {}).other_data);
  EXPECT_EQ(origin([](auto*) {}).skipped_sequences, 4);
  EXPECT_FALSE(origin([](auto*) {}, 12).other_data);
  EXPECT_EQ(origin([](auto* s) { s->seed = 1; }).skipped_sequences, 0);
}

TEST(ForkSpec, AMaskIsBounded) {
  FieldMask mask;
  for (int i = 0; i < 100; ++i) mask.add_paths("steps");
  EXPECT_TRUE(CheckForkMask(mask).ok());
  mask.add_paths("steps");
  EXPECT_EQ(CheckForkMask(mask).message(), "mask: 101 paths, at most 100");
}

}  // namespace
}  // namespace switchyard::server
