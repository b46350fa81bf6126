// A job's spec on the link: unset fields have the defaults of job_spec.h, every field arrives, and what is unknown is
// said.
#include "workers/session/service_job.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::JobSpec Least() {
  v1::JobSpec message;
  message.set_architecture("model");
  message.add_datasets("a.jsonl");
  message.set_steps(10);
  message.set_sequence_length(8);
  message.set_batch_sequences(4);
  return message;
}

TEST(ServiceJobTest, UnsetFieldsHaveTheDefaults) {
  const absl::StatusOr<JobSpec> spec = JobSpecFromProto(Least());
  ASSERT_TRUE(spec.ok()) << spec.status();
  const JobSpec defaults;
  EXPECT_EQ(spec->dtype, defaults.dtype);
  EXPECT_EQ(spec->workers, defaults.workers);
  EXPECT_EQ(spec->optimizer.schedule.shape, defaults.optimizer.schedule.shape);
  EXPECT_EQ(spec->optimizer.schedule.peak, defaults.optimizer.schedule.peak);
  EXPECT_EQ(spec->optimizer.schedule.final_fraction, defaults.optimizer.schedule.final_fraction);
  EXPECT_EQ(spec->optimizer.schedule.decay_fraction, defaults.optimizer.schedule.decay_fraction);
  EXPECT_EQ(spec->optimizer.schedule.total_steps, 10);
  EXPECT_EQ(spec->optimizer.beta1, defaults.optimizer.beta1);
  EXPECT_EQ(spec->optimizer.beta2, defaults.optimizer.beta2);
  EXPECT_EQ(spec->optimizer.epsilon, defaults.optimizer.epsilon);
  EXPECT_EQ(spec->optimizer.weight_decay, defaults.optimizer.weight_decay);
  EXPECT_EQ(spec->optimizer.clip_norm, defaults.optimizer.clip_norm);
  EXPECT_EQ(spec->balance, defaults.balance);
  EXPECT_EQ(spec->balance_weight, defaults.balance_weight);
  EXPECT_EQ(spec->checkpoints.every_steps, defaults.checkpoints.every_steps);
  EXPECT_EQ(spec->checkpoints.keep_last, defaults.checkpoints.keep_last);
  EXPECT_EQ(spec->communication.mode, defaults.communication.mode);
  EXPECT_EQ(spec->communication.piece_bytes, defaults.communication.piece_bytes);
}

TEST(ServiceJobTest, EveryFieldArrives) {
  v1::JobSpec message = Least();
  message.clear_architecture();
  message.set_base_checkpoint("base");
  message.add_evaluation("held_out.bin");
  message.set_precision(v1::TRAIN_PRECISION_BF16);
  message.set_micro_batch_sequences(1);
  message.set_workers(2);
  message.set_balance(v1::BALANCE_LOSS_PER_LAYER);
  message.set_balance_weight(0);
  message.set_z_weight(0.75);
  message.set_capacity_factor(1.25);
  message.set_balance_bias_rate(0.001);
  message.set_recompute(true);
  message.set_seed(~uint64_t{0});
  message.set_evaluate_every_steps(5);
  message.mutable_checkpoints()->set_every_steps(6);
  message.mutable_checkpoints()->set_keep_last(7);
  message.mutable_checkpoints()->set_keep_every_steps(8);
  message.set_max_runtime_seconds(9);
  (*message.mutable_labels())["who"] = "me";
  message.mutable_communication()->set_mode("partition");
  message.mutable_communication()->set_piece_bytes(4096);
  const absl::StatusOr<JobSpec> spec = JobSpecFromProto(message);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->base_checkpoint, "base");
  EXPECT_EQ(spec->architecture, "");
  EXPECT_THAT(spec->datasets, ElementsAre("a.jsonl"));
  EXPECT_THAT(spec->evaluation, ElementsAre("held_out.bin"));
  EXPECT_EQ(spec->dtype, TrainDType::kBf16);
  EXPECT_EQ(spec->steps, 10);
  EXPECT_EQ(spec->sequence_length, 8);
  EXPECT_EQ(spec->batch_sequences, 4);
  EXPECT_EQ(spec->micro_batch_sequences, 1);
  EXPECT_EQ(spec->workers, 2);
  EXPECT_EQ(spec->balance, BalanceLoss::kPerLayer);
  EXPECT_EQ(spec->balance_weight, 0);
  EXPECT_EQ(spec->z_weight, 0.75);
  EXPECT_EQ(spec->capacity_factor, 1.25);
  EXPECT_EQ(spec->balance_bias_rate, 0.001);
  EXPECT_TRUE(spec->recompute);
  EXPECT_EQ(spec->seed, ~uint64_t{0});
  EXPECT_EQ(spec->evaluate_every_steps, 5);
  EXPECT_EQ(spec->checkpoints.every_steps, 6);
  EXPECT_EQ(spec->checkpoints.keep_last, 7);
  EXPECT_EQ(spec->checkpoints.keep_every_steps, 8);
  EXPECT_EQ(spec->max_runtime_seconds, 9);
  EXPECT_THAT(spec->labels, ElementsAre(std::make_pair("who", "me")));
  EXPECT_EQ(spec->communication.mode, CommMode::kPartition);
  EXPECT_EQ(spec->communication.piece_bytes, 4096);
}

TEST(ServiceJobTest, EveryFieldOfTheOptimizerArrives) {
  v1::JobSpec message = Least();
  v1::OptimizerSpec* const optimizer = message.mutable_optimizer();
  optimizer->set_learning_rate(0.5);
  optimizer->set_schedule(v1::LR_SHAPE_WSD);
  optimizer->set_final_fraction(0);
  optimizer->set_warmup_steps(3);
  optimizer->set_decay_fraction(0.25);
  optimizer->set_beta1(0);
  optimizer->set_beta2(0.5);
  optimizer->set_epsilon(0.125);
  optimizer->set_weight_decay(0);
  optimizer->set_clip_norm(0);
  const absl::StatusOr<JobSpec> spec = JobSpecFromProto(message);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->optimizer.schedule.peak, 0.5);
  EXPECT_EQ(spec->optimizer.schedule.shape, LrShape::kWsd);
  EXPECT_EQ(spec->optimizer.schedule.final_fraction, 0);
  EXPECT_EQ(spec->optimizer.schedule.warmup_steps, 3);
  EXPECT_EQ(spec->optimizer.schedule.decay_fraction, 0.25);
  EXPECT_EQ(spec->optimizer.beta1, 0);
  EXPECT_EQ(spec->optimizer.beta2, 0.5);
  EXPECT_EQ(spec->optimizer.epsilon, 0.125);
  EXPECT_EQ(spec->optimizer.weight_decay, 0);
  EXPECT_EQ(spec->optimizer.clip_norm, 0);
}

TEST(ServiceJobTest, WhatIsUnknownIsSaid) {
  const auto problem = [](const std::function<void(v1::JobSpec*)>& change) {
    v1::JobSpec message = Least();
    change(&message);
    const absl::Status status = JobSpecFromProto(message).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->set_precision(static_cast<v1::TrainPrecision>(9)); }),
              HasSubstr("precision: this worker does not know the value 9"));
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->set_balance(static_cast<v1::BalanceLoss>(9)); }),
              HasSubstr("balance: this worker does not know the value 9"));
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->mutable_optimizer()->set_schedule(static_cast<v1::LrShape>(9)); }),
              HasSubstr("optimizer.schedule: this worker does not know the value 9"));
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->mutable_communication()->set_mode("fastest"); }), HasSubstr("fastest"));
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->set_steps(0); }), HasSubstr("steps: 0 is outside [1, "));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(v1::STOP_KIND_UNSPECIFIED).status()));
  EXPECT_EQ(*FromProto(v1::STOP_KIND_NOW), StopKind::kNow);
  v1::StartTraining start;
  *start.mutable_spec() = Least();
  start.set_job_id("job");
  start.set_world(2);
  start.set_rank(2);
  EXPECT_THAT(std::string(FromProto(start).status().message()), HasSubstr("no seat: rank 2 of 2"));
  start.set_rank(1);
  start.add_data()->set_name("a.bin");
  EXPECT_THAT(std::string(FromProto(start).status().message()), HasSubstr("data.root: this worker does not know"));
}

}  // namespace
}  // namespace switchyard
