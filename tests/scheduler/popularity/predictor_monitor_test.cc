// Scenarios as text, a step a line; figures are total-variation distances in thousandths:
//   batches N marginal=200 path=100     N batches of that; who is not named has no estimate
//   best NAME     on NAME     off NAME     trial NAME
//   says TEXT     the reports since the last `says` or `silent`, joined by " | ", contain it
//   silent        there were none
#include "scheduler/popularity/predictors/predictor_monitor.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace switchyard::popularity {
namespace {

const std::vector<std::string> kNames = {"marginal", "path", "probe"};
constexpr MonitorOptions kOptions{.min_batches = 8, .trial_batches = 10, .wait_batches = 20, .max_wait_batches = 40};

int IndexOf(const std::string& name) {
  for (size_t j = 0; j < kNames.size(); ++j)
    if (kNames[j] == name) return static_cast<int>(j);
  ADD_FAILURE() << "no estimator " << name;
  return 0;
}

std::vector<int64_t> Distances(const std::vector<std::string>& words) {
  std::vector<int64_t> distances(kNames.size(), PredictorMonitor::kNoEstimate);
  for (size_t i = 2; i < words.size(); ++i) {
    const std::pair<std::string, std::string> figure = absl::StrSplit(words[i], '=');
    int64_t thousandths = 0;
    EXPECT_TRUE(absl::SimpleAtoi(figure.second, &thousandths)) << words[i];
    distances[static_cast<size_t>(IndexOf(figure.first))] = thousandths * kWholeDistance / 1000;
  }
  return distances;
}

void Play(absl::string_view scenario) {
  PredictorMonitor monitor(kNames, 2, kOptions);
  for (const absl::string_view line : absl::StrSplit(scenario, '\n', absl::SkipWhitespace())) {
    SCOPED_TRACE(std::string(line));
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const std::string what = words[0], rest = words.size() > 1 ? words[1] : "";
    if (what == "batches") {
      int count = 0;
      ASSERT_TRUE(absl::SimpleAtoi(rest, &count));
      std::vector<int64_t> reported = Distances(words);
      for (int i = 0; i < count; ++i) {
        std::vector<int64_t> asked = reported;
        for (size_t j = 0; j < asked.size(); ++j)
          if (!monitor.Wants(1, static_cast<int>(j))) asked[j] = PredictorMonitor::kNoEstimate;
        monitor.Add(1, asked);
      }
    } else if (what == "best") {
      EXPECT_EQ(monitor.Best(1), IndexOf(rest));
    } else if (what == "says" || what == "silent") {
      const std::string reports = absl::StrJoin(monitor.TakeReports(), " | ");
      const absl::string_view wanted = what == "says" ? line.substr(line.find("says ") + 5) : "";
      EXPECT_TRUE(what == "says" ? absl::StrContains(reports, wanted) : reports.empty()) << reports;
    } else {
      const PredictorState wanted = what == "on"    ? PredictorState::kOn
                                    : what == "off" ? PredictorState::kOff
                                                    : PredictorState::kTrial;
      ASSERT_TRUE(what == "on" || what == "off" || what == "trial") << "no such step";
      EXPECT_EQ(monitor.StateOf(1, IndexOf(rest)), wanted);
    }
    EXPECT_EQ(monitor.Best(0), 0) << "another layer's business";
  }
}

TEST(PredictorMonitorTest, TheLeastDistantDecidesOnceThereIsEvidence) {
  Play(R"(
    batches 7 marginal=200 path=150 probe=50
    best marginal
    batches 1 marginal=200 path=150 probe=50
    best probe
    batches 60 marginal=200 path=150 probe=180
    best path
    silent)");
}

TEST(PredictorMonitorTest, AnotherOneIsTakenOnlyIfItIsBetterByASixteenth) {
  Play(R"(
    batches 20 marginal=200 path=100 probe=110
    best path
    batches 90 marginal=200 path=100 probe=96
    best path
    batches 90 marginal=200 path=100 probe=90
    best probe)");
}

TEST(PredictorMonitorTest, WorseThanMarginalIsSwitchedOffAndSaysBothFigures) {
  Play(R"(
    batches 7 marginal=200 path=300 probe=100
    on path
    silent
    batches 1 marginal=200 path=300 probe=100
    off path
    says estimator path is off in layer 1: its total-variation distance 0.300 is above 9/8 of marginal's 0.200 (8 batches)
    best probe)");
}

TEST(PredictorMonitorTest, ALittleWorseIsNotWorthASwitch) {
  Play(R"(
    batches 300 marginal=200 path=220
    on path
    best marginal
    silent)");
}

TEST(PredictorMonitorTest, TheOneThatDecidesIsSwitchedOffToo) {
  Play(R"(
    batches 8 marginal=300 probe=250
    batches 60 marginal=600
    best probe
    batches 2 marginal=550 probe=1000
    off probe
    best marginal
    says estimator probe is off in layer 1)");
}

TEST(PredictorMonitorTest, ItIsTriedInTheShadowAndComesBack) {
  Play(R"(
    batches 8 marginal=200 path=300
    off path
    says is off
    batches 19 marginal=200 path=100
    off path
    batches 1 marginal=200 path=100
    trial path
    batches 9 marginal=200 path=100
    trial path
    best marginal
    silent
    batches 1 marginal=200 path=100
    on path
    says estimator path is on again in layer 1: its total-variation distance 0.100 is below 15/16 of marginal's 0.200 (10 batches)
    batches 8 marginal=200 path=100
    best path)");
}

TEST(PredictorMonitorTest, EachFailedTrialDoublesTheWaitUpToTheLargest) {
  Play(R"(
    batches 8 marginal=200 path=300
    says is off
    batches 30 marginal=200 path=195
    off path
    batches 39 marginal=200 path=100
    off path
    batches 1 marginal=200 path=100
    trial path
    batches 10 marginal=200 path=300
    off path
    batches 40 marginal=200 path=300
    trial path
    silent)");
}

TEST(PredictorMonitorTest, WithoutAnEstimateThereIsNoEvidence) {
  Play(R"(
    batches 100 marginal=200
    on path
    best marginal
    batches 100 path=900 probe=1
    on path
    best marginal)");
}

// Both distances are of the same batches: the easy ones that path did not see do not count for marginal.
TEST(PredictorMonitorTest, ComparesOnTheSameBatches) {
  Play(R"(
    batches 20 marginal=400 path=300
    batches 50 marginal=100
    on path
    batches 8 marginal=400 path=300
    on path
    silent)");
}

}  // namespace
}  // namespace switchyard::popularity
