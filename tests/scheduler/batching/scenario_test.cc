// Runs the transcripts of tests/scenarios/ (language: scenario_interpreter.h): one test per file.
//
// A mismatch prints the transcript as it came out, ready to be read and, if it is right, to be pasted into the file.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/scheduler/batching/scenario_interpreter.h"

namespace switchyard::testing_batching {
namespace {

constexpr char kFolder[] = "tests/scenarios";

std::vector<std::string> ScenarioNames() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder, error)) {
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ScenarioTest : public testing::TestWithParam<std::string> {};

TEST_P(ScenarioTest, GoesAsWritten) {
  std::ifstream file(absl::StrCat(kFolder, "/", GetParam(), ".txt"));
  ASSERT_TRUE(file.good());
  ScenarioInterpreter interpreter;
  std::string expected, actual, line;
  int num_calls = 0;
  while (std::getline(file, line)) {
    absl::StrAppend(&expected, line, "\n");
    if (line.empty() || line[0] == '#') {
      absl::StrAppend(&actual, line, "\n");
    } else if (!absl::ascii_isspace(line[0])) {
      absl::StrAppend(&actual, line, "\n");
      for (const std::string& answer : interpreter.Call(line)) absl::StrAppend(&actual, "  ", answer, "\n");
      ++num_calls;
    }
  }
  EXPECT_GT(num_calls, 3);
  EXPECT_EQ(actual, expected) << "--- as it came out ---\n" << actual << "---";
}

INSTANTIATE_TEST_SUITE_P(Files, ScenarioTest, testing::ValuesIn(ScenarioNames()),
                         [](const auto& info) { return info.param; });

TEST(ScenariosTest, AreThere) { EXPECT_GE(ScenarioNames().size(), 20u); }

}  // namespace
}  // namespace switchyard::testing_batching
