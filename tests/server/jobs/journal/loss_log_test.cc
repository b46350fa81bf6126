#include "server/jobs/journal/loss_log.h"

#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/byte_io.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class LossLogTest : public testing::Test {
 protected:
  LossLogTest() {
    job_.id = "job-1";
    job_.attempt = 1;
  }

  LossLog Log() const {
    return LossLog(*RootDir::Open(dir_.path(), "the checkpoint root"),
                   [] { return absl::UnixEpoch() + absl::Seconds(1234567890); });
  }
  void Step(LossLog* log, int64_t step, double loss = 1.5) const {
    log->OnStep(
        job_,
        {.step = step, .loss = loss, .learning_rate = 0.25, .gradient_norm = 2, .tokens = 10 * step, .seconds = {}});
  }
  std::string Path(const std::string& name) const { return dir_.path() + "/job-1/log/" + name; }
  std::string Read(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& name, const std::string& contents) const {
    std::filesystem::create_directories(dir_.path() + "/job-1/log");
    std::ofstream(Path(name), std::ios::binary) << contents;
  }
  // Returns the first column of every row after the header.
  std::vector<std::string> Steps(const std::string& name) const {
    std::vector<std::string> steps;
    for (const absl::string_view row : absl::StrSplit(Read(name), '\n', absl::SkipEmpty())) {
      steps.emplace_back(row.substr(0, row.find(',')));
    }
    EXPECT_THAT(steps, testing::Contains("step").Times(1));
    return {steps.empty() ? steps.end() : steps.begin() + 1, steps.end()};
  }
  // Returns all events of all files, in the order of the files' names.
  std::vector<tensorboard::Event> Events() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path() + "/job-1/log")) {
      const std::string name = entry.path().filename();
      if (absl::StartsWith(name, "events.out.tfevents.1234567890.")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    std::vector<tensorboard::Event> events;
    for (const std::string& name : names) {
      const std::string bytes = Read(name);
      for (size_t at = 0; at < bytes.size();) {
        const auto length = LoadInt<uint64_t>(bytes.data() + at);
        tensorboard::Event event;
        EXPECT_TRUE(event.ParseFromString(bytes.substr(at + 12, length)));
        EXPECT_EQ(EventRecord(event), bytes.substr(at, length + 16));
        events.push_back(std::move(event));
        at += length + 16;
      }
    }
    return events;
  }

  const model::TempDir dir_;
  Job job_;
};

TEST_F(LossLogTest, ARowAStepAtOnce) {
  LossLog log = Log();
  log.OnStarted(job_, 0);
  Step(&log, 1, 3.25);
  EXPECT_THAT(Read("steps.csv"), StartsWith("step,loss,balance_loss,z_loss,learning_rate,gradient_norm,tokens,"));
  EXPECT_THAT(Read("steps.csv"), HasSubstr("\n1,3.25,0,0,0.25,2,10,"));
  Step(&log, 2, std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Read("steps.csv"), HasSubstr("\n2,nan,"));
  log.OnEvaluated(job_, {.step = 2, .loss = 1.75, .tokens = 99});
  EXPECT_EQ(Read("evaluations.csv"), "step,loss,tokens\n2,1.75,99\n");
  const std::vector<absl::string_view> lines = absl::StrSplit(absl::string_view(Read("steps.csv")), '\n');
  EXPECT_EQ(lines.size(), 4u);
}

TEST_F(LossLogTest, EveryColumnHasItsName) {
  LossLog log = Log();
  log.OnStarted(job_, 0);
  log.OnStep(job_, {.step = 1,
                    .loss = 2,
                    .balance_loss = 3,
                    .z_loss = 4,
                    .learning_rate = 5,
                    .gradient_norm = 6,
                    .tokens = 7,
                    .tokens_per_second = 8,
                    .seconds = {9, 10, 11, 12, 13, 14, 15, 16},
                    .dropped_rows = 17,
                    .dead_experts = 18});
  EXPECT_EQ(Read("steps.csv"),
            "step,loss,balance_loss,z_loss,learning_rate,gradient_norm,tokens,tokens_per_second,seconds,"
            "forward_seconds,backward_seconds,expert_seconds,all_to_all_seconds,all_reduce_seconds,optimizer_seconds,"
            "data_seconds,dropped_rows,dead_experts\n1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18\n");
}

TEST_F(LossLogTest, PreferencesAreTwoMoreColumns) {
  job_.spec.dpo.beta = 0.1;
  job_.spec.evaluation_names = {"x"};
  LossLog log = Log();
  log.OnStarted(job_, 0);
  log.OnStep(job_, {.step = 1, .loss = 0.5, .seconds = {}, .preferences = {{.margin = -1.5, .accuracy = 0.25}}});
  log.OnStep(job_, {.step = 2, .seconds = {}, .skipped = true});
  EXPECT_THAT(Read("steps.csv"), AllOf(HasSubstr(",dropped_rows,dead_experts,margin,accuracy\n1,0.5,"),
                                       HasSubstr(",0,0,-1.5,0.25\n2,"), testing::EndsWith(",0,0,,\n")));
  const jobs::PreferenceFigures figures = {.margin = 2, .accuracy = 0.75, .pairs = 4};
  log.OnEvaluated(job_, {.step = 2,
                         .loss = 0.25,
                         .tokens = 9,
                         .sets = {{.name = "x", .loss = 0.25, .tokens = 9, .preferences = figures}},
                         .preferences = figures});
  EXPECT_EQ(Read("evaluations.csv"), "step,loss,tokens,margin,accuracy\n2,0.25,9,2,0.75\n");
  EXPECT_EQ(Read("evaluation_sets.csv"), "step,set,loss,perplexity,tokens,margin,accuracy\n2,x,0.25,,9,2,0.75\n");
  std::map<std::string, float> values;
  for (const tensorboard::Event& event : Events()) {
    for (const auto& value : event.summary().value()) values[value.tag()] = value.simple_value();
  }
  EXPECT_EQ(values["train/margin"], -1.5f);
  EXPECT_EQ(values["train/accuracy"], 0.25f);
  EXPECT_EQ(values["eval/margin"], 2);
  EXPECT_EQ(values["eval_sets/accuracy/x"], 0.75f);
  EXPECT_EQ(values.count("eval/perplexity") + values.count("eval_sets/perplexity/x"), 0u);
}

TEST_F(LossLogTest, GoingOnFromAStepCutsLaterRowsOff) {
  for (const int from : {0, 3}) {
    LossLog log = Log();
    log.OnStarted(job_, from);
    for (int step = from + 1; step <= 5; ++step) Step(&log, step);
    log.OnEvaluated(job_, {.step = from + 2, .loss = 1});
    log.OnEnded(job_);
    Step(&log, 9);  // the job has not started
    ++job_.attempt;
  }
  EXPECT_THAT(Steps("steps.csv"), ElementsAre("1", "2", "3", "4", "5"));
  EXPECT_THAT(Steps("evaluations.csv"), ElementsAre("2", "5"));
  Log().OnStarted(job_, 5);
  EXPECT_THAT(Steps("evaluations.csv"), ElementsAre("2", "5"));
  Log().OnStarted(job_, 2);
  EXPECT_THAT(Steps("steps.csv"), ElementsAre("1", "2"));
}

// An attempt that goes on from an evaluated step evaluates it again, which would give two points in TensorBoard.
TEST_F(LossLogTest, AnEvaluationIsLoggedOnce) {
  LossLog log = Log();
  const auto evaluate = [&](int64_t step) { log.OnEvaluated(job_, {.step = step, .loss = 1.5, .tokens = 9}); };
  log.OnStarted(job_, 0);
  Step(&log, 1);
  evaluate(1);
  Step(&log, 2);
  evaluate(2);
  ++job_.attempt;
  log.OnStarted(job_, 2);
  evaluate(2);
  Step(&log, 3);
  evaluate(3);
  ++job_.attempt;
  log.OnStarted(job_, 1);  // from an earlier checkpoint: later rows are void and are written again
  evaluate(1);
  Step(&log, 2);
  evaluate(2);
  ++job_.attempt;
  log.OnStarted(job_, 2);
  evaluate(2);
  EXPECT_THAT(Steps("evaluations.csv"), ElementsAre("1", "2"));
  // The points that remain for a reader of events, for which a START event voids later steps.
  std::vector<int64_t> points;
  for (const tensorboard::Event& event : Events()) {
    if (event.session_log().status() == tensorboard::SessionLog::START) {
      std::erase_if(points, [&](int64_t step) { return step >= event.step(); });
    }
    for (const auto& value : event.summary().value()) {
      if (value.tag() == "eval/loss") points.push_back(event.step());
    }
  }
  EXPECT_THAT(points, ElementsAre(1, 2));
}

// The sets of an evaluation, with names as they are.
TEST_F(LossLogTest, NamedSetsHaveRowsOfTheirOwn) {
  job_.spec.evaluation_names = {"code", "a \"b\", c"};
  const auto evaluate = [&](LossLog* log, int64_t step) {
    log->OnEvaluated(job_, {.step = step, .loss = 1.5, .tokens = 9, .sets = {{"code", 1, 4}, {"a \"b\", c", 2, 5}}});
  };
  {
    LossLog log = Log();
    log.OnStarted(job_, 0);
    for (const int64_t step : {2, 4}) evaluate(&log, step);
  }
  ++job_.attempt;
  LossLog log = Log();
  log.OnStarted(job_, 2);  // what is beyond is void
  evaluate(&log, 2);       // again, with the same weights
  evaluate(&log, 4);
  const std::string header = "step,set,loss,perplexity,tokens\n";
  const auto rows = [](int step) {
    return absl::StrCat(step, ",code,1,2.71828183,4\n", step, ",\"a \"\"b\"\", c\",2,7.3890561,5\n");
  };
  EXPECT_EQ(Read("evaluation_sets.csv"), header + rows(2) + rows(4));
  EXPECT_EQ(Read("evaluations.csv"), "step,loss,tokens\n2,1.5,9\n4,1.5,9\n");
  std::vector<std::string> values;
  for (const tensorboard::Event& event : Events()) {
    if (event.step() != 4) continue;
    for (const auto& value : event.summary().value()) {
      values.push_back(absl::StrCat(value.tag(), "=", value.simple_value()));
    }
  }
  values.resize(6);
  EXPECT_THAT(values, ElementsAre("eval/loss=1.5", "eval/perplexity=4.48169", "eval_sets/loss/code=1",
                                  "eval_sets/perplexity/code=2.71828", "eval_sets/loss/a \"b\", c=2",
                                  "eval_sets/perplexity/a \"b\", c=7.38906"));
}

TEST_F(LossLogTest, WithoutNamesThereIsNoFileOfSets) {
  LossLog log = Log();
  log.OnStarted(job_, 0);
  log.OnEvaluated(job_, {.step = 1, .loss = 1.5, .tokens = 9});
  EXPECT_FALSE(std::filesystem::exists(Path("evaluation_sets.csv")));
}

// A skipped step measures nothing; a zero would look like a value.
TEST_F(LossLogTest, ASkippedStepHasNoLoss) {
  LossLog log = Log();
  log.OnStarted(job_, 0);
  log.OnStep(job_, {.step = 1, .learning_rate = 0.25, .tokens = 10, .seconds = {}, .skipped = true});
  EXPECT_THAT(Read("steps.csv"), HasSubstr("\n1,,,,0.25,,10,"));
  std::vector<std::string> tags;
  for (const tensorboard::Event& event : Events()) {
    for (const auto& value : event.summary().value()) tags.push_back(value.tag());
  }
  EXPECT_THAT(tags, AllOf(Contains("train/lr"), Contains("train/tokens_per_second"), Not(Contains("train/loss")),
                          Not(Contains("train/grad_norm")), Not(Contains("train/dead_experts"))));
  Step(&log, 2);
  EXPECT_THAT(Read("steps.csv"), HasSubstr("\n2,1.5,0,0,0.25,2,20,"));
}

// Killed in the middle of a row, or of the header.
TEST_F(LossLogTest, TornRowsAreCutOff) {
  const std::string whole = "step,loss,tokens\n1,2,3\n2,2,3\n";
  for (size_t size = 0; size <= whole.size(); ++size) {
    Write("evaluations.csv", whole.substr(0, size));
    LossLog log = Log();
    log.OnStarted(job_, 3);
    const size_t rows = size < 23 ? 0 : size < 29 ? 1 : 2;
    EXPECT_EQ(Read("evaluations.csv"), whole.substr(0, 17 + 6 * rows)) << size;
    EXPECT_FALSE(std::filesystem::exists(Path("evaluations.csv.old"))) << size;
    ++job_.attempt;
  }
}

TEST_F(LossLogTest, OtherColumnsAreKeptAside) {
  Write("evaluations.csv", "step,accuracy\n1,0.5\n");
  LossLog log = Log();
  log.OnStarted(job_, 1);
  EXPECT_EQ(Read("evaluations.csv"), "step,loss,tokens\n");
  EXPECT_EQ(Read("evaluations.csv.old"), "step,accuracy\n1,0.5\n");
}

TEST_F(LossLogTest, TensorBoardsEvents) {
  LossLog log = Log();
  log.OnStarted(job_, 0);
  Step(&log, 1, 3.25);
  log.OnEvaluated(job_, {.step = 1, .loss = 2.5});
  log.OnEnded(job_);
  ++job_.attempt;
  log.OnStarted(job_, 1);
  const std::vector<tensorboard::Event> events = Events();
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[0].wall_time(), 1234567890);
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[1].step(), 1);
  std::vector<std::string> values;
  for (const auto& value : events[2].summary().value()) {
    values.push_back(absl::StrCat(value.tag(), "=", value.simple_value()));
    EXPECT_TRUE(value.has_simple_value());
  }
  EXPECT_EQ(events[2].step(), 1);
  EXPECT_THAT(values, ElementsAre("train/loss=3.25", "train/balance_loss=0", "train/z_loss=0", "train/lr=0.25",
                                  "train/grad_norm=2", "train/tokens_per_second=0", "train/dropped_rows=0",
                                  "train/dead_experts=0", "seconds/step=0", "seconds/forward=0", "seconds/backward=0",
                                  "seconds/experts=0", "seconds/all_to_all=0", "seconds/all_reduce=0",
                                  "seconds/optimizer=0", "seconds/data=0"));
  EXPECT_EQ(events[3].summary().value(0).tag(), "eval/loss");
  EXPECT_EQ(events[3].summary().value(1).tag(), "eval/perplexity");
  EXPECT_NEAR(events[3].summary().value(1).simple_value(), 12.18249, 1e-4);  // e^2.5
  // The second attempt voids all steps from 2 on.
  EXPECT_EQ(events[5].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[5].step(), 2);
}

// A record of the tensorboard package's own writer: Event(wall_time=1, step=3, summary train/loss = 0.5).
TEST(EventRecordTest, IsTensorBoardsOwn) {
  tensorboard::Event event;
  event.set_wall_time(1);
  event.set_step(3);
  auto* value = event.mutable_summary()->add_value();
  value->set_tag("train/loss");
  value->set_simple_value(0.5f);
  EXPECT_EQ(absl::BytesToHexString(EventRecord(event)),
            "200000000000000029eda95009000000000000f03f10032a130a110a0a747261696e2f6c6f7373150000003f87a9e1ea");
}

TEST_F(LossLogTest, AFullDiskLosesRowsAndNothingElse) {
  LossLog log = Log();
  log.OnStarted(job_, 0);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old = signal(SIGXFSZ, SIG_IGN);
  Step(&log, 1);
  // Not quite another row fits.
  const rlimit small = {Read("steps.csv").size() + 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  Step(&log, 2);
  Step(&log, 3);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old);
  Step(&log, 4);
  EXPECT_THAT(Steps("steps.csv"), ElementsAre("1", "4"));
  std::vector<int64_t> logged;
  for (const tensorboard::Event& event : Events()) {
    if (event.has_summary()) logged.push_back(event.step());
  }
  EXPECT_EQ(logged.front(), 1);
  EXPECT_EQ(logged.back(), 4);
}

TEST_F(LossLogTest, WhereNothingCanBeMadeTheJobGoesOn) {
  std::ofstream(dir_.path() + "/job-1") << "no folder";
  LossLog log = Log();
  log.OnStarted(job_, 0);
  Step(&log, 1);
  log.OnEnded(job_);
  EXPECT_TRUE(std::filesystem::is_regular_file(dir_.path() + "/job-1"));
}

TEST_F(LossLogTest, LinksOutOfTheRootAreNotFollowed) {
  const model::TempDir outside;
  std::filesystem::create_symlink(outside.path(), dir_.path() + "/job-1");
  LossLog log = Log();
  log.OnStarted(job_, 0);
  Step(&log, 1);
  EXPECT_TRUE(std::filesystem::is_empty(outside.path()));
}

}  // namespace
}  // namespace switchyard::server
