// switchyard train watch: a job followed to its end, on a terminal and elsewhere, and over a restart of the server.
#include "clients/cli/commands/train_watch.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "google/rpc/status.pb.h"
#include "tests/clients/cli/train_fixture.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ProgressLineTest, SaysHowFarItIs) {
  v1::Job job = JobIn(v1::JOB_STATE_RUNNING, 120);
  EXPECT_EQ(ProgressLine(job), "step 120/2000 | loss 3.2500 | norm 0.88 | lr 3.00e-04 | 12345 tok/s");
  job.mutable_evaluation()->set_loss(3.5);
  job.set_seconds_left(79.2);
  EXPECT_EQ(ProgressLine(job),
            "step 120/2000 | loss 3.2500 | eval 3.5000 | norm 0.88 | lr 3.00e-04 | 12345 tok/s | 1m20s left");
  job.mutable_progress()->set_packing(2);
  EXPECT_EQ(
      ProgressLine(job),
      "step 120/2000 | loss 3.2500 | eval 3.5000 | norm 0.88 | lr 3.00e-04 | 12345 tok/s | packing 2 | 1m20s left");
  job.mutable_progress()->set_dropped_rows(40);
  job.mutable_progress()->set_chunks(4);
  EXPECT_EQ(ProgressLine(job),
            "step 120/2000 | loss 3.2500 | eval 3.5000 | norm 0.88 | lr 3.00e-04 | 12345 tok/s | packing 2 | 4 chunks "
            "| 40 dropped | 1m20s left");
  job = JobIn(v1::JOB_STATE_RUNNING, 120);
  job.mutable_spec()->set_steps(0);  // of a job of epochs
  job.mutable_progress()->set_total_steps(400);
  job.mutable_progress()->set_padding(0.0234);
  EXPECT_EQ(ProgressLine(job), "step 120/400 | loss 3.2500 | norm 0.88 | lr 3.00e-04 | 12345 tok/s | 2.3% padding");
  job = JobIn(v1::JOB_STATE_RUNNING, 120);
  job.mutable_progress()->set_skipped(true);
  job.set_note("step 120 was skipped");
  EXPECT_EQ(ProgressLine(job), "step 120/2000 | skipped | lr 3.00e-04 | 12345 tok/s | step 120 was skipped");
  job = JobIn(v1::JOB_STATE_RUNNING, 120);
  job.mutable_progress()->mutable_preferences()->set_margin(0.25);
  job.mutable_progress()->mutable_preferences()->set_accuracy(0.875);
  EXPECT_EQ(ProgressLine(job),
            "step 120/2000 | loss 3.2500 | margin 0.2500 | accuracy 0.875 | norm 0.88 | lr 3.00e-04 | 12345 tok/s");
  job = JobIn(v1::JOB_STATE_PREPARING);
  job.set_prepared_bytes(2'500'000);
  job.set_prepare_bytes(10'000'000);
  EXPECT_EQ(ProgressLine(job), "PREPARING | 2.5 of 10.0 MB of text");
  job = JobIn(v1::JOB_STATE_PENDING);
  job.set_note("waits for 2 workers");
  EXPECT_EQ(ProgressLine(job), "PENDING | waits for 2 workers");
}

TEST_F(TrainCommandTest, WatchPrintsALineAChange) {
  v1::Job done = JobIn(v1::JOB_STATE_SUCCEEDED, 2000);
  done.mutable_checkpoint()->set_folder("job-1/step-00002000");
  training_.watch = {JobIn(v1::JOB_STATE_PENDING), JobIn(v1::JOB_STATE_PENDING), JobIn(v1::JOB_STATE_RUNNING, 1), done};
  const client::CliRun run = Train({"watch", "job-1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out,
            "PENDING\n"
            "step 1/2000 | loss 3.2500 | norm 0.88 | lr 3.00e-04 | 12345 tok/s\n"
            "SUCCEEDED | step 2000/2000 | loss 3.2500 | norm 0.88 | lr 3.00e-04 | 12345 tok/s\n"
            "job job-1 succeeded after 2000 steps; its checkpoint: job-1/step-00002000\n");
  const client::CliRun json = Train({"watch", "job-1", "--json"});
  EXPECT_EQ(std::count(json.out.begin(), json.out.end(), '\n'), 4);
  EXPECT_EQ(Json::parse(json.out.substr(0, json.out.find('\n')))["state"], "pending");
}

TEST_F(TrainCommandTest, ATerminalsLineIsWrittenOver) {
  training_.watch = {JobIn(v1::JOB_STATE_PENDING), JobIn(v1::JOB_STATE_RUNNING, 1), JobIn(v1::JOB_STATE_RUNNING, 2),
                     JobIn(v1::JOB_STATE_SUCCEEDED, 2000)};
  std::istringstream in;
  std::ostringstream out, err;
  Console console = {in, out, err, /*interactive=*/false, /*live=*/true};
  EXPECT_EQ(RunCli({"train", "watch", "job-1", training_.flag()}, console), 0) << err.str();
  const std::string step = "/2000 | loss 3.2500 | norm 0.88 | lr 3.00e-04 | 12345 tok/s";
  EXPECT_EQ(out.str(),
            absl::StrCat("PENDING\n\x1b[?7lstep 1", step, "\x1b[?7h\r\x1b[K\x1b[?7lstep 2", step,
                         "\x1b[?7h\nSUCCEEDED | step 2000", step, "\njob job-1 succeeded after 2000 steps\n"))
      << "the terminal cuts a line that it writes over, so that it has one row";
}

TEST_F(TrainCommandTest, AFailedJobsErrorIsExplained) {
  v1::Job failed = JobIn(v1::JOB_STATE_FAILED, 5);
  failed.mutable_error()->set_code(15);
  failed.mutable_error()->set_message("step 5: the loss is nan");
  training_.watch = {failed};
  const client::CliRun run = Train({"watch", "job-1"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("job job-1 failed: step 5: the loss is nan"));
  EXPECT_EQ(ToJson(failed)["error"], Json({{"code", "DATA_LOSS"}, {"message", "step 5: the loss is nan"}}));
  training_.watch = {JobIn(v1::JOB_STATE_CANCELLED)};
  EXPECT_EQ(Train({"watch", "job-1"}).exit_code, 1);
}

// A server that is killed goes on with its jobs when it is started again, and the watcher with it.
TEST_F(TrainCommandTest, WatchOutlivesTheServer) {
  training_.watch = {JobIn(v1::JOB_STATE_RUNNING, 1)};
  training_.status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  std::unique_ptr<client::FakeTraining> next;
  std::thread restart([&] {
    EXPECT_TRUE(training_.was_watched_again.WaitForNotificationWithTimeout(absl::Seconds(60)));
    training_.Stop();
    next = std::make_unique<client::FakeTraining>(training_.port());
    next->watch = {JobIn(v1::JOB_STATE_SUCCEEDED, 2000)};
  });
  const client::CliRun run = Train({"watch", "job-1"});
  restart.join();
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("[the server is away; asking again]"));
  EXPECT_THAT(run.out, AllOf(HasSubstr("step 1/2000"), HasSubstr("succeeded after 2000 steps")));
}

TEST_F(TrainCommandTest, WatchGivesUp) {
  training_.status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  EXPECT_EQ(Train({"watch", "job-1", "--timeout=0.3"}).exit_code, 1);
  training_.status =
      rpc::ToGrpcStatus(rpc::MakeError(absl::StatusCode::kNotFound, v1::JOB_NOT_FOUND, "no job job-1"), "");
  const client::CliRun run = Train({"watch", "job-1"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("`switchyard train list` names the jobs"));
}

}  // namespace
}  // namespace switchyard::cli
