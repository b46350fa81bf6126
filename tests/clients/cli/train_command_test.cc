// switchyard train fork, list, get, pause, resume and cancel.
#include <algorithm>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "clients/cli/json.h"
#include "tests/clients/cli/train_fixture.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(TrainCommandTest, ListShowsPages) {
  v1::Job job = JobIn(v1::JOB_STATE_RUNNING, 120);
  job.set_created_unix_ms(1'700'000'000'000);
  (*job.mutable_spec()->mutable_labels())["b"] = "2";
  (*job.mutable_spec()->mutable_labels())["a"] = "1";
  training_.pages.resize(2);
  *training_.pages[0].add_jobs() = job;
  training_.pages[0].set_next_page_token("more");
  *training_.pages[1].add_jobs() = JobIn(v1::JOB_STATE_FAILED);
  const client::CliRun one = Train({"list", "--page_size=1", "--state=running", "--state=FAILED", "--label=a=1"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.out, AllOf(HasSubstr("job  "), HasSubstr("job-1 "), HasSubstr("RUNNING"), HasSubstr("120/2000"),
                             HasSubstr("2023-11-14 22:13:20  a=1 b=2\n")));
  EXPECT_THAT(one.err, HasSubstr("--page_token=more"));
  EXPECT_EQ(training_.listed[0].page_size(), 1);
  EXPECT_THAT(training_.listed[0].states(), ElementsAre(v1::JOB_STATE_RUNNING, v1::JOB_STATE_FAILED));
  EXPECT_EQ(training_.listed[0].labels().at("a"), "1");
  training_.listed.clear();
  const client::CliRun all = Train({"list", "--all", "--json"});
  EXPECT_EQ(std::count(all.out.begin(), all.out.end(), '\n'), 2);
  EXPECT_EQ(all.err, "");
  EXPECT_EQ(training_.listed[1].page_token(), "more");
  EXPECT_THAT(Train({"list", "--state=runing"}).err, HasSubstr("--state is \"runing\"; did you mean \"running\"?"));
}

TEST_F(TrainCommandTest, CallsAboutOneJob) {
  training_.job = JobIn(v1::JOB_STATE_PAUSING, 5);
  EXPECT_EQ(Train({"pause", "job-1"}).out, "job-1 PAUSING\n");
  EXPECT_EQ(Train({"resume", "job-1"}).out, "job-1 PAUSING\n");
  EXPECT_EQ(Json::parse(Train({"cancel", "job-1", "--json"}).out)["state"], "pausing");
  v1::StateChange* change = training_.job.add_changes();
  change->set_state(v1::JOB_STATE_PAUSING);
  change->set_reason("asked for");
  const client::CliRun get = Train({"get", "job-1"});
  EXPECT_THAT(get.out, AllOf(HasSubstr("job-1: PAUSING | step 5/2000"),
                             HasSubstr("1970-01-01 00:00:00 UTC  PAUSING: asked for"), HasSubstr("\"steps\": 2000")));
  EXPECT_THAT(training_.calls, ElementsAre("pause job-1", "resume job-1", "cancel job-1", "get job-1"));
  EXPECT_EQ(Train({"pause"}).exit_code, 2);
}

TEST_F(TrainCommandTest, ForkSendsWhatIsGivenAndItsMask) {
  training_.job.mutable_origin()->set_job("job-0");
  training_.job.mutable_origin()->set_step(800);
  const client::CliRun run =
      Train({"fork", "job-0", "--step=800", "--learning_rate=1e-4", "--z_weight=0", "--steps=3000", "--dataset=b.bin",
             "--label=try=2", "--skip_batches=20", "--request_id=r1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "job-1\n");
  const v1::ForkJobRequest& sent = training_.forked;
  EXPECT_EQ(sent.id(), "job-0");
  EXPECT_EQ(sent.request_id(), "r1");
  EXPECT_EQ(sent.step(), 800);
  EXPECT_EQ(sent.skip_batches(), 20);
  EXPECT_THAT(sent.mask().paths(), testing::UnorderedElementsAre("optimizer.learning_rate", "z_weight", "steps",
                                                                 "datasets", "dataset_weights", "labels"));
  EXPECT_EQ(sent.changes().optimizer().learning_rate(), 1e-4);
  EXPECT_EQ(sent.changes().steps(), 3000);
  EXPECT_THAT(sent.changes().datasets(), ElementsAre("b.bin"));
  EXPECT_EQ(Train({"fork", "job-0", "--json"}).exit_code, 0);
  EXPECT_FALSE(training_.forked.has_step()) << "the newest";
  EXPECT_EQ(training_.forked.mask().paths_size(), 0);
  EXPECT_EQ(Train({"fork", "job-0", "--request_id=again"}).err, "[it had been submitted before]\n");
  EXPECT_THAT(Train({"get", "job-1"}).out, HasSubstr("fork of     job-0 at step 800\n"));
  EXPECT_EQ(Train({"fork"}).exit_code, 2);
  EXPECT_EQ(Train({"fork", "job-0", "--architecture=other"}).exit_code, 2) << "it is the parent's";
}

// (The server copies files meanwhile.)
TEST_F(TrainCommandTest, ForkHasTheTimeLimitThatIsGiven) {
  const auto left = [&](const std::vector<std::string>& args) {
    EXPECT_EQ(Train(args).exit_code, 0);
    return absl::FromChrono(training_.fork_deadline) - absl::Now();
  };
  EXPECT_GT(left({"fork", "job-0", "--timeout=3600"}), absl::Minutes(10));
  EXPECT_LT(left({"fork", "job-0", "--timeout=10"}), absl::Seconds(20));
  EXPECT_LT(left({"fork", "job-0"}), absl::Seconds(40)) << "30 s without the flag";
}

TEST_F(TrainCommandTest, DeleteSaysWhatIsFreed) {
  training_.freed_bytes = 1234;
  EXPECT_EQ(Train({"delete", "job-1"}).out, "job-1 is deleted; freed 1234 bytes\n");
  EXPECT_EQ(Json::parse(Train({"delete", "job-1", "--json"}).out)["freed_bytes"], 1234);
  EXPECT_THAT(training_.calls, ElementsAre("delete job-1", "delete job-1"));
  training_.status = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "job-1 is RUNNING; cancel it first");
  const client::CliRun refused = Train({"delete", "job-1"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("job-1 is RUNNING; cancel it first"));
  EXPECT_EQ(Train({"delete"}).exit_code, 2);
}

TEST_F(TrainCommandTest, EvaluationsAreShownBySets) {
  training_.job = JobIn(v1::JOB_STATE_RUNNING, 120);
  v1::EvaluationResult* evaluation = training_.job.mutable_evaluation();
  evaluation->set_step(100);
  evaluation->set_loss(2);
  evaluation->set_tokens(30);
  const auto add = [&](const std::string& name, double loss) {
    v1::SetResult* set = evaluation->add_sets();
    set->set_name(name);
    set->set_loss(loss);
    set->set_tokens(10);
  };
  add("code", 1);
  EXPECT_THAT(Train({"get", "job-1"}).out,
              AllOf(HasSubstr("loss 3.2500 | eval 2.0000 | norm"),
                    HasSubstr("evaluation  step 100: loss 2.0000, perplexity 7.389 over 30 tokens\nattempts")))
      << "one set is all of it";
  add("chat", 3);
  for (const char* name : {"c", "d", "e"}) add(name, 2);
  *training_.job.mutable_best_evaluation() = *evaluation;
  training_.job.mutable_best_evaluation()->set_step(80);
  training_.job.mutable_best_checkpoint()->set_folder("job-1/step-00000080");
  training_.job.mutable_best_checkpoint()->set_step(80);
  EXPECT_THAT(
      Train({"get", "job-1"}).out,
      AllOf(HasSubstr("eval 2.0000 (code 1.0000, chat 3.0000, c 2.0000, d 2.0000, 1 more) | norm"),
            HasSubstr("tokens\n              code: loss 1.0000, perplexity 2.718 over 10 tokens\n"),
            HasSubstr("best        step 80: loss 2.0000"), HasSubstr("best kept   job-1/step-00000080 (step 80)\n")));
  training_.pages.resize(1);
  *training_.pages[0].add_jobs() = training_.job;
  EXPECT_THAT(Train({"list"}).out, AllOf(HasSubstr("loss      eval"), HasSubstr("3.2500    2.0000")));
}

TEST_F(TrainCommandTest, EvaluationsOfPairsHaveTheirFigures) {
  training_.job = JobIn(v1::JOB_STATE_RUNNING, 120);
  v1::EvaluationResult* evaluation = training_.job.mutable_evaluation();
  evaluation->set_step(100);
  evaluation->set_loss(0.5);
  evaluation->mutable_preferences()->set_margin(1.25);
  evaluation->mutable_preferences()->set_accuracy(0.75);
  evaluation->mutable_preferences()->set_pairs(40);
  EXPECT_THAT(Train({"get", "job-1"}).out,
              HasSubstr("evaluation  step 100: loss 0.5000, margin 1.2500, accuracy 0.750 over 40 pairs\n"));
}

TEST_F(TrainCommandTest, AForkOfTheBest) {
  EXPECT_THAT(Train({"fork", "job-1", "--step=best"}).err, HasSubstr("--step=best: job-1 has no best checkpoint"));
  training_.job.mutable_best_checkpoint()->set_step(80);
  EXPECT_EQ(Train({"fork", "job-1", "--step=best"}).exit_code, 0);
  EXPECT_EQ(training_.forked.step(), 80);
  const client::CliRun wrong = Train({"fork", "job-1", "--step=worst"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--step must be a number of steps or best, is \"worst\""));
}

// Without the flag the field stays unset: the server then keeps what the job has.
TEST_F(TrainCommandTest, ResumeOnOtherWorkers) {
  EXPECT_EQ(Train({"resume", "job-1"}).exit_code, 0);
  EXPECT_FALSE(training_.resumed.has_workers());
  training_.job.mutable_spec()->set_workers(3);
  training_.job.set_submitted_workers(2);
  const client::CliRun run = Train({"resume", "job-1", "--workers=3"});
  EXPECT_EQ(run.out, "job-1 PENDING\n") << run.err;
  EXPECT_EQ(training_.resumed.id(), "job-1");
  EXPECT_EQ(training_.resumed.workers(), 3);
  const Json json = Json::parse(Train({"resume", "job-1", "--workers=0", "--json"}).out);
  EXPECT_TRUE(training_.resumed.has_workers()) << "the server says what is wrong with 0";
  EXPECT_EQ(json["spec"]["workers"], 3);
  EXPECT_EQ(json["submitted_workers"], 2);
  EXPECT_EQ(Train({"resume", "job-1", "--workers=two"}).exit_code, 2);
  EXPECT_EQ(Train({"pause", "job-1", "--workers=3"}).exit_code, 2);
  EXPECT_THAT(Train({"resume", "--help"}).out, AllOf(HasSubstr("--workers=NUMBER"), HasSubstr("to the bit")));
}

}  // namespace
}  // namespace switchyard::cli
