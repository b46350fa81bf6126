// Every field of a job: in the API's message, and after the journal.
#include "server/jobs/api/job_convert.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/support/errors.h"

namespace switchyard::server {
namespace {

// All numbers differ, so that swapped fields are found.
Job FullJob() {
  Job job;
  job.id = "job-1";
  job.request_id = "request";
  job.owner = "tina";
  job.spec.architecture = "demo";
  job.submitted_workers = 30;
  job.state = jobs::JobState::kRunning;
  job.attempt = 31;
  job.error = absl::DataLossError("why");
  job.progress = jobs::TrainProgress{.step = 1,
                                     .loss = 2.5,
                                     .balance_loss = 3.5,
                                     .z_loss = 4.5,
                                     .learning_rate = 5.5,
                                     .gradient_norm = 6.5,
                                     .tokens = 7,
                                     .tokens_per_second = 8.5,
                                     .seconds = {.total = 9.5,
                                                 .forward = 10.5,
                                                 .backward = 11.5,
                                                 .experts = 12.5,
                                                 .all_to_all = 13.5,
                                                 .all_reduce = 14.5,
                                                 .optimizer = 15.5,
                                                 .data = 16.5},
                                     .dropped_rows = 17,
                                     .dead_experts = 18,
                                     .packing = 19,
                                     .chunks = 39,
                                     .padding = 40.5,
                                     .total_steps = 41,
                                     .skipped = true,
                                     .skipped_steps = 38,
                                     .preferences = {{.margin = 49.5, .accuracy = 50.5, .pairs = 51}}};
  job.evaluation = jobs::EvaluationResult{.step = 20,
                                          .loss = 21.5,
                                          .tokens = 22,
                                          .sets = {{"a", 43.5, 44, {{.margin = 55.5, .accuracy = 56.5, .pairs = 57}}}},
                                          .preferences = {{.margin = 52.5, .accuracy = 53.5, .pairs = 54}}};
  job.best_evaluation = jobs::EvaluationResult{.step = 45, .loss = 46.5, .tokens = 47};
  job.best_checkpoint = jobs::SavedCheckpoint{.step = 45, .folder = "job-1/step-45", .bytes = 48};
  job.checkpoint =
      jobs::SavedCheckpoint{.step = 23, .folder = "job-1/step-23", .bytes = 24, .seconds = 25.5, .saved_unix_ms = 26};
  job.changes = {{jobs::JobState::kPending, 27, "submitted"}};
  job.created_unix_ms = 32;
  job.started_unix_ms = 33;
  job.ended_unix_ms = 34;
  job.origin =
      jobs::ForkOrigin{.job = "job-0", .step = 40, .attempts = 41, .other_data = true, .skipped_sequences = 42};
  job.seconds_left = 35.5;
  job.note = "note";
  job.prepared_bytes = 36;
  job.prepare_bytes = 37;
  return job;
}

// Returns the type's fields that the message does not set; a new field of the API must be added to FullJob.
std::vector<std::string> Missing(const google::protobuf::Message& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = message.GetDescriptor()->field(i);
    const google::protobuf::Reflection& get = *message.GetReflection();
    const bool there = field->is_repeated() ? get.FieldSize(message, field) > 0 : get.HasField(message, field);
    if (!there) names.push_back(field->full_name());
  }
  return names;
}

void ExpectProgress(const v1::TrainProgress& progress) {
  EXPECT_EQ(Missing(progress), std::vector<std::string>());
  EXPECT_EQ(progress.step(), 1);
  EXPECT_EQ(progress.loss(), 2.5);
  EXPECT_EQ(progress.balance_loss(), 3.5);
  EXPECT_EQ(progress.z_loss(), 4.5);
  EXPECT_EQ(progress.learning_rate(), 5.5);
  EXPECT_EQ(progress.gradient_norm(), 6.5);
  EXPECT_EQ(progress.tokens(), 7);
  EXPECT_EQ(progress.tokens_per_second(), 8.5);
  EXPECT_EQ(progress.dropped_rows(), 17);
  EXPECT_EQ(progress.dead_experts(), 18);
  EXPECT_EQ(progress.packing(), 19);
  EXPECT_EQ(progress.chunks(), 39);
  EXPECT_EQ(progress.padding(), 40.5);
  EXPECT_EQ(progress.total_steps(), 41);
  EXPECT_TRUE(progress.skipped());
  EXPECT_EQ(progress.skipped_steps(), 38);
  EXPECT_EQ(Missing(progress.preferences()), std::vector<std::string>());
  EXPECT_EQ(progress.preferences().margin(), 49.5);
  EXPECT_EQ(progress.preferences().accuracy(), 50.5);
  EXPECT_EQ(progress.preferences().pairs(), 51);
  const v1::StepSeconds& seconds = progress.seconds();
  EXPECT_EQ(Missing(seconds), std::vector<std::string>());
  EXPECT_EQ(seconds.total(), 9.5);
  EXPECT_EQ(seconds.forward(), 10.5);
  EXPECT_EQ(seconds.backward(), 11.5);
  EXPECT_EQ(seconds.experts(), 12.5);
  EXPECT_EQ(seconds.all_to_all(), 13.5);
  EXPECT_EQ(seconds.all_reduce(), 14.5);
  EXPECT_EQ(seconds.optimizer(), 15.5);
  EXPECT_EQ(seconds.data(), 16.5);
}

void ExpectResults(const v1::Job& message) {
  const v1::EvaluationResult& evaluation = message.evaluation();
  EXPECT_EQ(Missing(evaluation), std::vector<std::string>());
  EXPECT_EQ(evaluation.step(), 20);
  EXPECT_EQ(evaluation.loss(), 21.5);
  EXPECT_EQ(evaluation.tokens(), 22);
  ASSERT_EQ(evaluation.sets_size(), 1);
  EXPECT_EQ(evaluation.sets(0).name(), "a");
  EXPECT_EQ(evaluation.sets(0).loss(), 43.5);
  EXPECT_EQ(evaluation.sets(0).tokens(), 44);
  EXPECT_EQ(evaluation.preferences().margin(), 52.5);
  EXPECT_EQ(evaluation.preferences().pairs(), 54);
  EXPECT_EQ(evaluation.sets(0).preferences().accuracy(), 56.5);
  EXPECT_EQ(message.best_evaluation().step(), 45);
  EXPECT_EQ(message.best_evaluation().loss(), 46.5);
  EXPECT_EQ(message.best_checkpoint().folder(), "job-1/step-45");
  const v1::SavedCheckpoint& checkpoint = message.checkpoint();
  EXPECT_EQ(Missing(checkpoint), std::vector<std::string>());
  EXPECT_EQ(checkpoint.step(), 23);
  EXPECT_EQ(checkpoint.folder(), "job-1/step-23");
  EXPECT_EQ(checkpoint.bytes(), 24);
  EXPECT_EQ(checkpoint.seconds(), 25.5);
  EXPECT_EQ(checkpoint.saved_unix_ms(), 26);
  ASSERT_EQ(message.changes_size(), 1);
  EXPECT_EQ(message.changes(0).state(), v1::JOB_STATE_PENDING);
  EXPECT_EQ(message.changes(0).unix_ms(), 27);
  EXPECT_EQ(message.changes(0).reason(), "submitted");
}

TEST(JobConvertTest, UsersSeeEveryField) {
  const v1::Job message = ToProto(FullJob());
  EXPECT_EQ(Missing(message), std::vector<std::string>());
  EXPECT_EQ(message.id(), "job-1");
  EXPECT_EQ(message.owner(), "tina");
  EXPECT_EQ(message.request_id(), "request");
  EXPECT_EQ(message.spec().architecture(), "demo");
  EXPECT_EQ(message.submitted_workers(), 30);
  EXPECT_EQ(message.state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(message.attempt(), 31);
  EXPECT_EQ(message.error().message(), "why");
  EXPECT_EQ(message.created_unix_ms(), 32);
  EXPECT_EQ(message.started_unix_ms(), 33);
  EXPECT_EQ(message.ended_unix_ms(), 34);
  EXPECT_EQ(Missing(message.origin()), std::vector<std::string>());
  EXPECT_EQ(message.origin().job(), "job-0");
  EXPECT_EQ(message.origin().step(), 40);
  EXPECT_EQ(message.seconds_left(), 35.5);
  EXPECT_EQ(message.note(), "note");
  EXPECT_EQ(message.prepared_bytes(), 36);
  EXPECT_EQ(message.prepare_bytes(), 37);
  ExpectProgress(message.progress());
  ExpectResults(message);
}

// Workers' reports and journaled jobs: converted from a message and back, they give the same message.
TEST(JobConvertTest, MessagesComeBackWhole) {
  const v1::Job message = ToProto(FullJob());
  const absl::StatusOr<Job> job = FromProto(message);
  ASSERT_TRUE(job.ok()) << job.status();
  v1::Job again = ToProto(*job);
  ExpectProgress(again.progress());
  ExpectResults(again);
  // Fields that are not kept.
  EXPECT_EQ(again.seconds_left() + static_cast<double>(again.prepared_bytes() + again.prepare_bytes()), 0);
  EXPECT_EQ(again.note(), "");
  again.set_seconds_left(message.seconds_left());
  again.set_prepared_bytes(message.prepared_bytes());
  again.set_prepare_bytes(message.prepare_bytes());
  again.set_note(message.note());
  EXPECT_EQ(again.DebugString(), message.DebugString());
}

}  // namespace
}  // namespace switchyard::server
