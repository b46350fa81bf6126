
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/link/job_spec_codec.h"
#include "server/jobs/api/job_convert.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

TEST(SpecConvertTest, WhatIsUnsetHasTheDefault) {
  v1::JobSpec message;
  message.set_steps(20);
  const absl::StatusOr<jobs::JobSpec> spec = FromProto(message);
  ASSERT_TRUE(spec.ok()) << spec.status();
  jobs::JobSpec wanted;
  wanted.steps = 20;
  wanted.optimizer.schedule.total_steps = 20;
  EXPECT_EQ(EncodeSpec(*spec), EncodeSpec(wanted));
  EXPECT_EQ(spec->workers, 1);
  EXPECT_FALSE(spec->document_mask);                            // of a journal from before it was a field
  EXPECT_EQ(spec->packing, jobs::WindowPacking::kConcatenate);  // likewise
  EXPECT_EQ(spec->optimizer.schedule.total_steps, 20);
}

jobs::JobSpec FullSpec() {
  jobs::JobSpec spec;
  spec.base_checkpoint = "base";
  spec.architecture = "arch";
  spec.datasets = {"a.bin", "b.jsonl"};
  spec.dataset_weights = {0.25, 3};
  spec.evaluation = {"e.bin"};
  spec.dtype = jobs::TrainDType::kF64;
  spec.steps = 1;
  spec.epochs = 1.5;
  spec.packing = jobs::WindowPacking::kBestFit;
  spec.sequence_length = 2;
  spec.batch_sequences = 3;
  spec.micro_batch_sequences = 4;
  spec.workers = 5;
  spec.on_serving_workers = true;
  spec.optimizer = {.schedule = {.shape = jobs::LrShape::kWsd,
                                 .peak = 0.1,
                                 .final_fraction = 0.2,
                                 .warmup_steps = 6,
                                 .total_steps = 1,
                                 .decay_fraction = 0.3},
                    .beta1 = 0.4,
                    .beta2 = 0.5,
                    .epsilon = 0.6,
                    .weight_decay = 0.7,
                    .clip_norm = 0};
  spec.parameters = {{.pattern = "*.q_proj.*", .frozen = true}, {.pattern = "*norm*", .rate = 0.5, .weight_decay = 0}};
  spec.lora = {.rank = 13, .alpha = 0.75, .targets = {"v_proj"}, .dropout = 0.125};
  spec.dropout = {.embedding = 0, .hidden = 0.25, .attention = 0.5};
  spec.router_jitter = 0.0625;
  spec.dpo = {.beta = 0.25, .label_smoothing = 0.125};
  spec.balance = jobs::BalanceLoss::kPerLayer;
  spec.balance_weight = 0;
  spec.z_weight = 0.8;
  spec.capacity_factor = 1.25;
  spec.balance_bias_rate = 0.001;
  spec.recompute = true;
  spec.document_mask = true;
  spec.communication = {.piece_bytes = 4096,
                        .granularity = {.rule = jobs::ChunkRule::kFixed, .chunks = 3},
                        .packing = {.rule = jobs::PackingRule::kFixed, .replicas = 4}};
  spec.offload = jobs::OffloadPolicy::kNever;
  spec.zero = 1;
  spec.restore = {.input = pipeline::InputRestore::kOffload, .hidden = pipeline::HiddenRestore::kRecompute};
  spec.seed = ~uint64_t{0};
  spec.evaluate_every_steps = 7;
  spec.evaluation_names = {"held out"};
  spec.checkpoints = {.every_steps = 8, .keep_last = 9, .keep_every_steps = 10, .keep_best = true};
  spec.early_stop = {.patience = 12, .min_improvement = 0.125};
  spec.max_runtime_seconds = 11;
  spec.labels = {{"a", "1"}, {"b", "2"}};
  return spec;
}

TEST(SpecConvertTest, EveryFieldGoesThereAndBack) {
  const jobs::JobSpec spec = FullSpec();
  const v1::JobSpec message = link::ToProto(spec);
  std::vector<const google::protobuf::FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  EXPECT_EQ(static_cast<int>(set.size()), message.GetDescriptor()->field_count()) << message.DebugString();
  const absl::StatusOr<jobs::JobSpec> back = FromProto(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(EncodeSpec(*back), EncodeSpec(spec));
  EXPECT_EQ(back->dtype, jobs::TrainDType::kF64);
  EXPECT_EQ(back->optimizer.clip_norm, 0);
  EXPECT_EQ(back->restore, spec.restore);
  EXPECT_EQ(back->checkpoints, spec.checkpoints);
  EXPECT_EQ(back->early_stop, spec.early_stop);
  EXPECT_EQ(back->evaluation_names, spec.evaluation_names);
  EXPECT_EQ(back->parameters, spec.parameters);
  EXPECT_EQ(back->lora, spec.lora);
  EXPECT_EQ(back->dpo, spec.dpo);
  EXPECT_EQ(back->dropout, spec.dropout);
  EXPECT_EQ(back->router_jitter, 0.0625);
  EXPECT_EQ(back->communication, spec.communication);
  EXPECT_EQ(back->zero, 1);
  EXPECT_EQ(back->capacity_factor, 1.25);
  EXPECT_EQ(back->balance_bias_rate, 0.001);
  EXPECT_TRUE(back->document_mask);
  EXPECT_EQ(back->packing, jobs::WindowPacking::kBestFit);
  EXPECT_EQ(back->optimizer.schedule.decay_fraction, 0.3);
}

void ExpectBad(const v1::JobSpec& message, const std::string& text) {
  const absl::Status status = FromProto(message).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(SpecConvertTest, WhatTheServerDoesNotKnowIsNamed) {
  v1::JobSpec message;
  message.set_precision(static_cast<v1::TrainPrecision>(9));
  ExpectBad(message, "spec.precision: value 9");
  message = {};
  message.mutable_optimizer()->set_schedule(static_cast<v1::LrShape>(5));
  ExpectBad(message, "spec.optimizer.schedule: value 5");
  message = {};
  message.set_balance(static_cast<v1::BalanceLoss>(-1));
  ExpectBad(message, "spec.balance: value -1");
  message = {};
  message.set_document_mask(static_cast<v1::DocumentMask>(3));
  ExpectBad(message, "spec.document_mask: value 3");
  message = {};
  message.set_packing(static_cast<v1::WindowPacking>(3));
  ExpectBad(message, "spec.packing: value 3");
  message = {};
  message.mutable_communication()->set_granularity("many");
  ExpectBad(message, "spec.communication.granularity: ");
  message = {};
  message.mutable_communication()->set_expert_packing("0");
  ExpectBad(message, "spec.communication.expert_packing: ");
}

TEST(SpecConvertTest, UnknownFieldsAreNamed) {
  v1::SubmitJobRequest request;
  EXPECT_TRUE(CheckNoUnknownFields(request).ok());
  v1::OptimizerSpec* optimizer = request.mutable_spec()->mutable_optimizer();
  optimizer->GetReflection()->MutableUnknownFields(optimizer)->AddVarint(77, 1);
  const absl::Status status = CheckNoUnknownFields(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "spec.optimizer: field 77 is not known to this server");
}

TEST(SpecConvertTest, UnknownFieldsOfListsAreNamed) {
  v1::SubmitJobRequest request;
  (*request.mutable_spec()->mutable_labels())["team"] = "a";
  request.mutable_spec()->add_parameters()->set_pattern("*");
  v1::ParameterRule* rule = request.mutable_spec()->add_parameters();
  EXPECT_TRUE(CheckNoUnknownFields(request).ok());
  rule->GetReflection()->MutableUnknownFields(rule)->AddVarint(77, 1);
  EXPECT_EQ(CheckNoUnknownFields(request).message(), "spec.parameters[1]: field 77 is not known to this server");
}

TEST(JobConvertTest, StatesGoThereAndBack) {
  for (int i = 0; i < jobs::kNumJobStates; ++i) {
    const auto state = static_cast<jobs::JobState>(i);
    EXPECT_EQ(v1::JobState_Name(ToProto(state)), "JOB_STATE_" + std::string(jobs::JobStateName(state)));
    EXPECT_EQ(*FromProto(ToProto(state), "states"), state);
  }
  EXPECT_FALSE(FromProto(v1::JOB_STATE_UNSPECIFIED, "states").ok());
  EXPECT_FALSE(FromProto(static_cast<v1::JobState>(10), "states").ok());
}

}  // namespace
}  // namespace switchyard::server
