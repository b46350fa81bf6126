// An attempt on the link: unset fields of its spec get the defaults of job_spec.h, unknown values are errors;
// round_trip_test.cc has the rest.
#include "proto/link/training_assignment_codec.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::link {
namespace {

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

absl::StatusOr<jobs::JobSpec> Arrived(const v1::JobSpec& message) {
  v1::StartTraining start;
  *start.mutable_spec() = message;
  start.set_job_id("job");
  start.set_world(1);
  const absl::StatusOr<jobs::TrainingAssignment> assignment = FromProto(start);
  if (!assignment.ok()) return assignment.status();
  return assignment->spec;
}

TEST(TrainingAssignmentCodec, UnsetFieldsHaveTheDefaults) {
  const absl::StatusOr<jobs::JobSpec> spec = Arrived(Least());
  ASSERT_TRUE(spec.ok()) << spec.status();
  const jobs::JobSpec defaults;
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
  EXPECT_EQ(spec->communication.piece_bytes, jobs::kPiecesByLink);
  EXPECT_EQ(spec->communication, defaults.communication);
}

TEST(TrainingAssignmentCodec, WhatIsUnknownIsSaid) {
  const auto problem = [](const std::function<void(v1::JobSpec*)>& change) {
    v1::JobSpec message = Least();
    change(&message);
    const absl::Status status = Arrived(message).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->set_precision(static_cast<v1::TrainPrecision>(9)); }),
              HasSubstr("spec.precision: value 9 is not known to this worker"));
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->set_balance(static_cast<v1::BalanceLoss>(9)); }),
              HasSubstr("spec.balance: value 9 is not known to this worker"));
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->mutable_optimizer()->set_schedule(static_cast<v1::LrShape>(9)); }),
              HasSubstr("spec.optimizer.schedule: value 9 is not known to this worker"));
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->mutable_communication()->set_granularity("finest"); }),
              HasSubstr("\"finest\" is no granularity"));
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->mutable_communication()->set_expert_packing("densest"); }),
              HasSubstr("\"densest\" is no packing of experts"));
  EXPECT_THAT(problem([](v1::JobSpec* m) { m->set_steps(0); }), HasSubstr("steps: 0 is outside [1, "));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(v1::STOP_KIND_UNSPECIFIED).status()));
  EXPECT_EQ(*FromProto(v1::STOP_KIND_NOW), jobs::StopKind::kNow);
  v1::StartTraining start;
  *start.mutable_spec() = Least();
  start.set_job_id("job");
  start.set_world(2);
  start.set_rank(2);
  EXPECT_THAT(std::string(FromProto(start).status().message()), HasSubstr("no assignment: rank 2 of 2"));
  start.set_rank(1);
  start.add_data()->set_name("a.bin");
  EXPECT_THAT(std::string(FromProto(start).status().message()), HasSubstr("data.root: this worker does not know"));
}

}  // namespace
}  // namespace switchyard::link
