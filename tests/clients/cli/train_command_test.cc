#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "clients/cli/commands/train_watch.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cli/request_fields.h"
#include "gmock/gmock.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_training.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

v1::Job JobIn(v1::JobState state, int64_t step = 0) {
  v1::Job job;
  job.set_id("job-1");
  job.set_state(state);
  job.mutable_spec()->set_steps(2000);
  if (step == 0) return job;
  v1::TrainProgress* progress = job.mutable_progress();
  progress->set_step(step);
  progress->set_loss(3.25);
  progress->set_gradient_norm(0.875);
  progress->set_learning_rate(3e-4);
  progress->set_tokens_per_second(12345.4);
  return job;
}

// A good one, padded.
std::string SpecOfBytes(size_t bytes) {
  const std::string spec = R"({"steps": 8})";
  return spec + std::string(bytes - spec.size(), ' ');
}

class TrainCommandTest : public testing::Test {
 protected:
  TrainCommandTest() { training_.job = JobIn(v1::JOB_STATE_PENDING); }
  ~TrainCommandTest() override { std::remove(file_.c_str()); }

  client::CliRun Train(std::vector<std::string> args) {
    args.insert(args.begin(), "train");
    args.push_back(training_.flag());
    return client::RunCliWith(args);
  }
  std::string SpecFile(const std::string& text) {
    std::ofstream(file_) << text;
    return "--spec=" + file_;
  }

  client::FakeTraining training_;
  const std::string file_ = absl::StrCat(testing::TempDir(), "/spec-", getpid(), ".json");
};

TEST_F(TrainCommandTest, SubmitSendsFlagsAndPrintsTheId) {
  const client::CliRun run =
      Train({"submit", "--architecture=demo", "--dataset=a.jsonl", "--dataset=b.bin", "--steps=20",
             "--learning_rate=1e-3", "--schedule=wsd", "--precision=bf16", "--recompute", "--checkpoint_every_steps=5",
             "--communication=full", "--label=try=2", "--seed=18446744073709551615", "--request_id=r1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "job-1\n");
  const v1::JobSpec& spec = training_.submitted.spec();
  EXPECT_EQ(training_.submitted.request_id(), "r1");
  EXPECT_EQ(spec.architecture(), "demo");
  EXPECT_THAT(spec.datasets(), ElementsAre("a.jsonl", "b.bin"));
  EXPECT_EQ(spec.steps(), 20);
  EXPECT_EQ(spec.optimizer().learning_rate(), 1e-3);
  EXPECT_FALSE(spec.optimizer().has_beta1());
  EXPECT_EQ(spec.optimizer().schedule(), v1::LR_SHAPE_WSD);
  EXPECT_EQ(spec.precision(), v1::TRAIN_PRECISION_BF16);
  EXPECT_TRUE(spec.recompute());
  EXPECT_EQ(spec.checkpoints().every_steps(), 5);
  EXPECT_EQ(spec.communication().mode(), "full");
  EXPECT_EQ(spec.labels().at("try"), "2");
  EXPECT_EQ(spec.seed(), 18446744073709551615u);
}

TEST_F(TrainCommandTest, FlagsWinOverTheFile) {
  const client::CliRun run =
      Train({"submit", SpecFile(R"({"architecture": "demo", "datasets": ["a.bin"], "steps": 7, "seed": 9,
                                         "optimizer": {"learning_rate": 0.5, "schedule": "linear"},
                                         "labels": {"a": "b"}})"),
             "--dataset=c.bin", "--steps=8", "--clip_norm=0"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const v1::JobSpec& spec = training_.submitted.spec();
  EXPECT_THAT(spec.datasets(), ElementsAre("c.bin"));
  EXPECT_EQ(spec.steps(), 8);
  EXPECT_EQ(spec.seed(), 9u);
  EXPECT_EQ(spec.optimizer().learning_rate(), 0.5);
  EXPECT_TRUE(spec.optimizer().has_clip_norm());
  EXPECT_EQ(spec.labels().at("a"), "b");
}

// What a job's JSON shows can be submitted again.
TEST_F(TrainCommandTest, SpecsComeBack) {
  ASSERT_EQ(Train({"submit", "--architecture=demo", "--dataset=a.bin", "--beta2=0.99", "--balance=per_layer",
                   "--label=a=b", "--label=c=d"})
                .exit_code,
            0);
  const v1::JobSpec first = training_.submitted.spec();
  const client::CliRun run = Train({"submit", SpecFile(Dump(ToJson(first)))});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(ToJson(training_.submitted.spec()), ToJson(first));
  EXPECT_EQ(ToJson(first)["labels"], Json({{"a", "b"}, {"c", "d"}}));
}

TEST_F(TrainCommandTest, WrongSpecsAreNotSent) {
  struct Case {
    std::vector<std::string> args;
    std::string complaint;
  };
  const auto file = [&](const std::string& text) { return std::vector<std::string>{SpecFile(text)}; };
  for (const auto& [text, complaint] : std::vector<std::pair<std::string, std::string>>{
           {R"({"step": 1})", R"(unknown field "step"; did you mean "steps"?)"},
           {R"({"optimizer": {"learning_rat": 1}})",
            R"(unknown field "optimizer.learning_rat"; did you mean "learning_rate"?)"},
           {R"({"optimizer": 3})", "optimizer must be an object"},
           {R"({"steps": "x"})", "steps must be an integer, is \"x\""},
           {R"({"steps": 1.5})", "steps must be an integer"},
           {R"({"workers": 3000000000})", "workers must be an integer of 32 bits"},
           {R"({"balance": "al_layers"})", "balance is \"al_layers\"; did you mean \"all_layers\"?"},
           {R"({"labels": {"a": 1}})", "labels must be an object of texts"},
           {R"([1])", "must be an object"},
           {"{", "not valid JSON"},
           {R"({"labels": )" + std::string(128, '[') + std::string(128, ']') + "}", "nested 129 deep, limit 128"},
           {R"({"labels": )" + std::string(127, '[') + std::string(127, ']') + "}", "labels must be an object"},
           {SpecOfBytes((1 << 20) + 1), "has more bytes than the limit of 1048576"}}) {
    std::vector<std::string> args = file(text);
    args.insert(args.begin(), "submit");
    const client::CliRun run = Train(args);
    EXPECT_EQ(run.exit_code, 2) << complaint;
    EXPECT_THAT(run.err, AllOf(HasSubstr(file_), HasSubstr(complaint)));
  }
  for (const auto& [flag, complaint] : std::vector<std::pair<std::string, std::string>>{
           {"--steps=many", "--steps must be a number"},
           {"--schedule=cosin", "--schedule is \"cosin\"; did you mean \"cosine\"?"},
           {"--label=a", "--label must be an object of texts, or KEY=TEXT, is \"a\""},
           {"--learning_rat=1", "did you mean \"--learning_rate\"?"},
           {"--spec=/none", "/none: cannot be read"}}) {
    const client::CliRun run = Train({"submit", flag});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.err, HasSubstr(complaint));
  }
  EXPECT_FALSE(training_.submitted.has_spec());
}

TEST_F(TrainCommandTest, ASpecAtTheLimitIsSent) {
  EXPECT_EQ(Train({"submit", SpecFile(SpecOfBytes(1 << 20))}).exit_code, 0);
  EXPECT_EQ(training_.submitted.spec().steps(), 8);
}

TEST_F(TrainCommandTest, EveryFieldOfASpecHasAFlag) {
  v1::JobSpec spec;
  const auto names = [](const google::protobuf::Descriptor* type) {
    std::set<std::string> names;
    for (int i = 0; i < type->field_count(); ++i) {
      if (type->field(i)->message_type() == nullptr || type->field(i)->is_map()) names.insert(type->field(i)->name());
    }
    return names.size();
  };
  EXPECT_EQ(RequestFields<v1::JobSpec>().size(),
            names(v1::JobSpec::descriptor()) + names(v1::OptimizerSpec::descriptor()) +
                names(v1::CheckpointSpec::descriptor()) + names(v1::CommunicationSpec::descriptor()));
  // Each sets a field of its own.
  std::set<std::string> set;
  for (const RequestField<v1::JobSpec>& field : RequestFields<v1::JobSpec>()) {
    v1::JobSpec one;
    const std::string name = field.name;
    const Json value = name == "precision"                ? Json("fp64")
                       : name == "schedule"               ? Json("wsd")
                       : name == "balance"                ? Json("none")
                       : name == "offload"                ? Json("always")
                       : name == "label"                  ? Json({"a=b"})
                       : field.kind == FieldKind::kNumber ? Json(3)
                       : field.kind == FieldKind::kBool   ? Json(true)
                                                          : Json("text");
    ASSERT_TRUE(field.set(value, &one).ok()) << name;
    EXPECT_TRUE(set.insert(one.SerializeAsString()).second) << name;
  }
  EXPECT_EQ(set.count(""), 0u);
}

TEST_F(TrainCommandTest, WhatTheServerSaysIsShown) {
  training_.status = rpc::ToGrpcStatus(
      rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::TOO_FEW_WORKERS, "workers: needs 4, this server has 2"),
      "");
  const client::CliRun run = Train({"submit", "--workers=4"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("needs 4, this server has 2 [FAILED_PRECONDITION TOO_FEW_WORKERS]"),
                             HasSubstr("lower --workers")));
  EXPECT_EQ(run.out, "");
}

TEST_F(TrainCommandTest, TheSameRequestAgainSaysSo) {
  const client::CliRun run = Train({"submit", "--request_id=again"});
  EXPECT_EQ(run.out, "job-1\n");
  EXPECT_THAT(run.err, HasSubstr("submitted before"));
  const Json json = Json::parse(Train({"submit", "--request_id=again", "--json"}).out);
  EXPECT_EQ(json["job"]["id"], "job-1");
  EXPECT_EQ(json["job"]["state"], "pending");
  EXPECT_EQ(json["existed"], true);
}

TEST_F(TrainCommandTest, SubmitCanWatch) {
  training_.watch = {JobIn(v1::JOB_STATE_RUNNING, 1), JobIn(v1::JOB_STATE_SUCCEEDED, 2000)};
  const client::CliRun run = Train({"submit", "--watch", "--interval=0.25"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, testing::StartsWith("job-1\nstep 1/2000 | loss 3.2500"));
  EXPECT_EQ(training_.watched.id(), "job-1");
  EXPECT_EQ(training_.watched.min_interval_ms(), 250);
}

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
  EXPECT_EQ(ProgressLine(job),
            "step 120/2000 | loss 3.2500 | eval 3.5000 | norm 0.88 | lr 3.00e-04 | 12345 tok/s | packing 2 | 40 "
            "dropped | 1m20s left");
  job = JobIn(v1::JOB_STATE_RUNNING, 120);
  job.mutable_progress()->set_skipped(true);
  job.set_note("step 120 was skipped");
  EXPECT_EQ(ProgressLine(job), "step 120/2000 | skipped | lr 3.00e-04 | 12345 tok/s | step 120 was skipped");
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
  EXPECT_EQ(out.str(), absl::StrCat("PENDING\nstep 1", step, "\r\x1b[Kstep 2", step, "\nSUCCEEDED | step 2000", step,
                                    "\njob job-1 succeeded after 2000 steps\n"));
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

TEST_F(TrainCommandTest, DataPack) {
  training_.packing.resize(4);
  for (int i = 0; i < 4; ++i) {
    training_.packing[static_cast<size_t>(i)].set_bytes_done(100 * i);
    training_.packing[static_cast<size_t>(i)].set_bytes_total(300);
  }
  training_.packing[3].set_done(true);
  training_.packing[3].set_documents(7);
  training_.packing[3].set_tokens(1000);
  training_.packing[3].set_trained_tokens(900);
  const std::vector<std::string> args = {
      "data", "pack", "a.jsonl", "b.jsonl", "--output=t.bin", "--tokenizer=demo", training_.flag()};
  const client::CliRun run = client::RunCliWith(args);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "t.bin: 7 documents, 1000 tokens, 900 of them trained\n");
  EXPECT_EQ(run.err,
            "[packed 0 % of 300 bytes]\n[packed 30 % of 300 bytes]\n[packed 60 % of 300 bytes]\n[packed 100 % of 300 "
            "bytes]\n");
  EXPECT_THAT(training_.packed.inputs(), ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_EQ(training_.packed.output(), "t.bin");
  EXPECT_EQ(training_.packed.tokenizer(), "demo");
  training_.packing.resize(2);
  EXPECT_THAT(client::RunCliWith(args).err, HasSubstr("did not say what it packed"));
  training_.status = rpc::ToGrpcStatus(
      rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_FILE, "a.jsonl:3 (byte 12): text: expected a text"),
      "");
  const client::CliRun bad = client::RunCliWith(args);
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("a.jsonl:3 (byte 12): text: expected a text [INVALID_ARGUMENT BAD_FILE]"));
  EXPECT_EQ(client::RunCliWith({"data", "pack", "a.jsonl", training_.flag()}).exit_code, 2);
}

}  // namespace
}  // namespace switchyard::cli
