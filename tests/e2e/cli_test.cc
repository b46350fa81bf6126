// The program `switchyard` against a real server, as a script would use it.
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/shared_server.h"

namespace switchyard {
namespace {

using nlohmann::ordered_json;

class CliTest : public SharedServerTest {
 protected:
  // Its output, both streams; adds a failure unless it exits with `code`.
  std::string Run(std::vector<std::string> args, int code = 0) {
    args.insert(args.begin(), Binary("switchyard"));
    args.push_back("--server=" + server_->address());
    const auto process = Process::Start(args);
    EXPECT_EQ(process->Wait(absl::Seconds(60)).value_or(-1), code) << process->Output();
    return process->Output();
  }
  static std::vector<ordered_json> JsonLines(const std::string& output) {
    std::vector<ordered_json> lines;
    for (absl::string_view line : absl::StrSplit(output, '\n')) {
      if (!line.empty() && line[0] == '{') {
        lines.push_back(ordered_json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false));
      }
    }
    return lines;
  }
};

TEST_F(CliTest, GenerateStreamsText) {
  const std::string output =
      Run({"generate", "In the beginning", "--max_tokens=16", "--temperature=0", "--ignore_eos"});
  EXPECT_THAT(output, testing::HasSubstr(Generate(*client_, TextRequest("In the beginning", 16)).choices[0].text));
  EXPECT_THAT(output, testing::HasSubstr("tokens/s"));
}

// Every line is answered in its place: alone and in company the answers are the same; a bad line spoils only itself.
TEST_F(CliTest, JsonLinesKeepTheirOrder) {
  const std::string path = testing::TempDir() + absl::StrCat("switchyard-lines-", getpid());
  {
    std::ofstream file(path);
    for (int i = 0; i < 12; ++i) {
      file << "{\"token_ids\": [" << 100 + i << ", 9], \"temperature\": 0, \"max_tokens\": " << 4 + i
           << ", \"ignore_eos\": true, \"prompt_logprobs\": 1}\n";
    }
    file << "{\"text\": \"x\", \"max_token\": 4}\n";
  }
  const auto together = JsonLines(Run({"generate", "--input=" + path, "--json", "--concurrency=12"}, 1));
  const auto alone = JsonLines(Run({"generate", "--input=" + path, "--json", "--concurrency=1"}, 1));
  unlink(path.c_str());
  ASSERT_EQ(together.size(), 13u);
  ASSERT_EQ(alone.size(), 13u);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(together[i]["token_ids"].size(), 4 + i);
    EXPECT_EQ(together[i]["token_ids"], alone[i]["token_ids"]);
    EXPECT_EQ(together[i]["prompt_logprobs"], alone[i]["prompt_logprobs"]);
    EXPECT_EQ(together[i]["finish_reason"], "length");
    EXPECT_EQ(together[i]["usage"]["prompt_tokens"], 2);
    EXPECT_GT(together[i]["timings"]["decode_seconds"], 0.0);
  }
  EXPECT_THAT(together[12]["error"]["message"].get<std::string>(),
              testing::HasSubstr("line 13: unknown field \"max_token\"; did you mean \"max_tokens\"?"));
}

// From a pipe, with errors told while other threads answer: nothing is written twice, or in pieces.
TEST_F(CliTest, JsonLinesFromAPipe) {
  const std::string path = testing::TempDir() + absl::StrCat("switchyard-pipe-", getpid());
  {
    std::ofstream file(path);
    for (int i = 0; i < 40; ++i)
      file << (i % 3 == 0 ? "{\"txt\": 1}" : absl::StrCat("{\"text\": \"", i, "\"}")) << "\n";
  }
  const std::string command = absl::StrCat("cat '", path, "' | '", Binary("switchyard"), "' tokenize --input=- --json",
                                           " --server=", server_->address(), " 2>/dev/null");
  for (int round = 0; round < 20; ++round) {
    const auto process = Process::Start({"/bin/sh", "-c", command});
    EXPECT_EQ(process->Wait(absl::Seconds(60)).value_or(-1), 1);
    const auto lines = JsonLines(process->Output());
    ASSERT_EQ(lines.size(), 40u) << "round " << round << ": " << process->Output();
    for (size_t i = 0; i < lines.size(); ++i) {
      ASSERT_EQ(lines[i].contains("error"), i % 3 == 0) << "round " << round << ", line " << i;
      if (i % 3 == 0) continue;
      std::string text;
      for (const auto& piece : lines[i]["tokens"]) text += piece.get<std::string>();
      ASSERT_EQ(text, absl::StrCat(i));
    }
  }
  unlink(path.c_str());
}

TEST_F(CliTest, TextAndTokens) {
  const auto tokens = JsonLines(Run({"tokenize", "The sea is", "--json"}));
  ASSERT_EQ(tokens.size(), 1u);
  std::string ids;
  for (const auto& id : tokens[0]["token_ids"]) absl::StrAppend(&ids, ids.empty() ? "" : ",", id.get<int>());
  EXPECT_EQ(JsonLines(Run({"detokenize", ids, "--json"})).at(0)["text"], "The sea is");
}

TEST_F(CliTest, StatusAndBench) {
  const auto status = JsonLines(Run({"status", "--json"}));
  EXPECT_EQ(status.at(0)["ready"], true);
  EXPECT_EQ(status.at(0)["workers"].size(), 2u);
  const auto bench =
      JsonLines(Run({"bench", "--rate=50", "--num_requests=10", "--prompt_tokens=16", "--max_tokens=4", "--json"}));
  EXPECT_EQ(bench.at(0)["requests_ok"], 10);
  EXPECT_GT(bench.at(0)["output_tokens_per_second"], 0.0);
}

}  // namespace
}  // namespace switchyard
