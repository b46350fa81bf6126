#include "scheduler/base/flags/flag_set.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Config {
  std::string model;
  int port = 50051;
  int64_t bytes = 0;
  double share = 0.5;
  bool graphs = true;
  absl::Duration timeout = absl::Seconds(30);
  std::optional<int32_t> workers;
  std::vector<std::string> labels;
  std::string mode = "static";
  std::string prompt;
  std::vector<std::string> files;
};

constexpr uint32_t kPassedOn = 1, kOther = 2;

class FlagSetTest : public testing::Test {
 protected:
  FlagSetTest() {
    flags_.Add("model", &config_.model, "").Mark(kPassedOn);
    flags_.Add("port", &config_.port, "").Range(0, 65535).Alias("grpc_port");
    flags_.Add("bytes", &config_.bytes, "").Range(0, int64_t{1} << 50);
    flags_.Add("share", &config_.share, "").Mark(kPassedOn | kOther);
    flags_.Add("graphs", &config_.graphs, "").Mark(kPassedOn).Alias("cuda_graphs");
    flags_.Add("timeout", &config_.timeout, "").RangeOrZero(absl::Milliseconds(1), absl::Hours(1000));
    flags_.Add("workers", &config_.workers, "");
    flags_.Add("label", &config_.labels, "");
    flags_.AddFunction(
        "placement", "static",
        [this](absl::string_view text) {
          if (text != "static" && text != "agreed") return "must be static or agreed";
          config_.mode = std::string(text);
          return "";
        },
        "");
  }

  std::vector<std::string> Parse(const std::vector<std::string>& args) {
    std::vector<std::string> texts;
    for (const FlagProblem& problem : flags_.Parse(args)) texts.push_back(problem.ToString());
    return texts;
  }

  Config config_;
  FlagSet flags_;
};

TEST_F(FlagSetTest, EveryFormIsTaken) {
  EXPECT_THAT(Parse({"--model=a=b", "--port", "0x10", "--bytes=5000000000", "--share=1e-3", "--nographs",
                     "--timeout=1m30s", "--workers=-3", "--label=x=1", "--label", "--y", "--placement=agreed"}),
              IsEmpty());
  EXPECT_EQ(config_.model, "a=b");
  EXPECT_EQ(config_.port, 16);
  EXPECT_EQ(config_.bytes, 5'000'000'000);
  EXPECT_EQ(config_.share, 1e-3);
  EXPECT_FALSE(config_.graphs);
  EXPECT_EQ(config_.timeout, absl::Seconds(90));
  EXPECT_EQ(config_.workers, -3);
  EXPECT_THAT(config_.labels, ElementsAre("x=1", "--y"));
  EXPECT_EQ(config_.mode, "agreed");
  EXPECT_THAT(Parse({"--graphs", "--model="}), IsEmpty());
  EXPECT_TRUE(config_.graphs);
  EXPECT_EQ(config_.model, "");
  EXPECT_THAT(Parse({"--graphs=no"}), IsEmpty());
  EXPECT_FALSE(config_.graphs);
}

TEST_F(FlagSetTest, TheLastValueCounts) {
  EXPECT_THAT(Parse({"--port=1", "--port=2"}), IsEmpty());
  EXPECT_EQ(config_.port, 2);
  EXPECT_EQ(flags_.Find("port")->times_given, 2);
}

// As before a renaming: the old name is taken, is never shown, and what is passed on has the new one.
TEST_F(FlagSetTest, AliasesAreTakenAndKeptQuiet) {
  EXPECT_THAT(Parse({"--grpc_port=7", "--nocuda_graphs"}), IsEmpty());
  EXPECT_EQ(config_.port, 7);
  EXPECT_FALSE(config_.graphs);
  EXPECT_EQ(flags_.Find("grpc_port"), flags_.Find("port"));
  EXPECT_THAT(flags_.Names(), testing::Not(testing::Contains("grpc_port")));
  EXPECT_THAT(Parse({"--grpc_prt=7"}), ElementsAre("unknown flag --grpc_prt"));
  EXPECT_THAT(flags_.ArgumentsOf(kPassedOn), ElementsAre("--model=", "--share=0.5", "--graphs=false"));
}

TEST_F(FlagSetTest, AllProblemsAreReportedAtOnce) {
  EXPECT_THAT(
      Parse({"--modle=x", "--port=http", "serve", "-p", "--placement=best", "--graphs=maybe", "--timeout=5", "--xyzzyx",
             "--bytes"}),
      ElementsAre("unknown flag --modle; did you mean --model?", "Illegal value 'http' specified for flag 'port'",
                  "unexpected argument serve; flags look like --name=value",
                  "unexpected argument -p; flags look like --name=value", "--placement=best: must be static or agreed",
                  "Illegal value 'maybe' specified for flag 'graphs'", "Illegal value '5' specified for flag 'timeout'",
                  "unknown flag --xyzzyx", "--bytes: needs a value"));
}

TEST_F(FlagSetTest, RangesAreOfWhatTheVariableIs) {
  config_.port = 65536;
  config_.bytes = -1;
  config_.timeout = absl::ZeroDuration();
  std::vector<std::string> texts;
  for (const FlagProblem& problem : flags_.OutOfRange(/*given_only=*/false)) texts.push_back(problem.ToString());
  EXPECT_THAT(texts, ElementsAre("--port=65536: must be within [0, 65535]",
                                 "--bytes=-1: must be within [0, 1125899906842624]"));
  config_.timeout = absl::InfiniteDuration();
  EXPECT_EQ(flags_.OutOfRange(false).back().ToString(), "--timeout=inf: must be within [1ms, 1000h]");
  EXPECT_THAT(flags_.OutOfRange(/*given_only=*/true), IsEmpty());
}

// Where a value goes to another program it has to arrive as it was.
TEST_F(FlagSetTest, ValuesPassedOnKeepTheirBits) {
  for (const double share : {0.1, 1.0 / 3, 5e6, 1e-300, std::numeric_limits<double>::max()}) {
    config_.share = share;
    const std::vector<std::string> args = flags_.ArgumentsOf(kOther);
    config_.share = 0;
    EXPECT_THAT(Parse(args), IsEmpty());
    EXPECT_EQ(config_.share, share);
  }
}

TEST_F(FlagSetTest, DefaultsAreTheVariables) {
  EXPECT_EQ(flags_.Find("timeout")->default_text, "30s");
  EXPECT_EQ(flags_.Find("graphs")->default_text, "true");
  EXPECT_TRUE(flags_.Find("port")->is_default());
  EXPECT_THAT(Parse({"--port=1", "--placement=agreed"}), IsEmpty());
  EXPECT_FALSE(flags_.Find("port")->is_default());
  EXPECT_FALSE(flags_.Find("placement")->is_default());
}

TEST(PositionalTest, AreTakenInTheirOrder) {
  Config config;
  FlagSet flags;
  flags.AddPositional("prompt", &config.prompt, "").Required();
  flags.AddPositional("files", &config.files, "");
  flags.Add("port", &config.port, "").Required();
  const std::vector<FlagProblem> missing = flags.Parse({});
  ASSERT_EQ(missing.size(), 2u);
  EXPECT_EQ(missing[0].kind, FlagProblem::Kind::kMissing);
  const std::vector<std::string> args = {"-5", "a", "--port=1", "-", "--", "--port=2"};
  EXPECT_THAT(flags.Parse(args), IsEmpty());
  EXPECT_EQ(config.prompt, "-5");
  EXPECT_THAT(config.files, ElementsAre("a", "-", "--port=2"));
  EXPECT_EQ(config.port, 1);
  // Their names are none of flags.
  const std::vector<std::string> named = {"--prompt=x"};
  EXPECT_EQ(flags.Parse(named)[0].kind, FlagProblem::Kind::kUnknown);
}

}  // namespace
}  // namespace switchyard
