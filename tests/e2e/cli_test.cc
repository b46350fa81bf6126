// The program `switchyard` against a real server, as a script would use it.
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/trace_bytes.h"
#include "scheduler/popularity/trace/trace_file.h"
#include "tests/e2e/shared_server.h"

namespace switchyard {
namespace {

using nlohmann::ordered_json;

class CliTest : public SharedServerTest {
 protected:
  // Returns the program's output of both streams; fails the test unless it exits with `code`.
  std::string Run(std::vector<std::string> args, int code = 0) {
    args.insert(args.begin(), Binary("switchyard"));
    const bool is_admin = args[1] == "experts" || args[1] == "plan";
    args.push_back("--server=" + (is_admin ? server_->admin_address() : server_->address()));
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

// Lines are answered in order, with the same answers as alone; a bad line only fails itself.
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

TEST_F(CliTest, JsonHasTheExpertsOfEachTokenButTheLast) {
  const auto lines = JsonLines(Run({"generate", "--token_ids=5,9,11", "--max_tokens=4", "--temperature=0",
                                    "--ignore_eos", "--return_expert_paths", "--json"}));
  ASSERT_EQ(lines.size(), 1u);
  const ordered_json& paths = lines[0]["expert_paths"];
  const auto model = client_->GetModelInfo();
  ASSERT_TRUE(model.ok());
  ASSERT_EQ(paths.size(), 3u + 4u - 1u);
  for (const ordered_json& layers : paths) {
    ASSERT_EQ(static_cast<int>(layers.size()), model->num_moe_layers());
    for (const ordered_json& experts : layers) {
      ASSERT_EQ(static_cast<int>(experts.size()), model->experts_per_token());
      for (const ordered_json& expert : experts) {
        EXPECT_GE(expert.get<int>(), 0);
        EXPECT_LT(expert.get<int>(), model->num_experts());
      }
    }
  }
}

TEST_F(CliTest, TraceRecordWritesWhatGenerateReports) {
  const std::string path = testing::TempDir() + absl::StrCat("switchyard-trace-", getpid());
  const std::string output = Run({"trace", "record", "--token_ids=5,9,11", "--max_tokens=4", "--temperature=0",
                                  "--ignore_eos", "--label=ids", "--output=" + path});
  EXPECT_THAT(output, testing::HasSubstr("[1 documents, 1 sequences, 3 tokens]"));
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  unlink(path.c_str());
  const absl::StatusOr<popularity::RoutingTrace> trace = popularity::ParseTrace(bytes);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->model, client_->GetModelInfo()->weights_hash());
  ASSERT_EQ(trace->sequences.size(), 1u);
  v1::GenerateRequest request = IdsRequest({5, 9, 11}, 4);
  request.set_return_expert_paths(true);
  const StreamSeen seen = Generate(*client_, request);
  ASSERT_TRUE(seen.ok()) << seen.end << seen.fault;
  std::vector<int32_t> tokens = {5, 9, 11};
  tokens.insert(tokens.end(), seen.choices[0].token_ids.begin(), seen.choices[0].token_ids.end() - 1);
  EXPECT_EQ(trace->sequences[0].label, "ids");
  EXPECT_EQ(trace->sequences[0].num_prompt, 3);
  EXPECT_EQ(trace->sequences[0].token_ids, tokens);
  EXPECT_EQ(TraceIds(trace->sequences[0].experts), seen.choices[0].paths.experts());
}

// Every choice of every token is counted, in its phase and in every layer.
TEST_F(CliTest, ExpertsAreCounted) {
  const auto look = [this] { return JsonLines(Run({"experts", "--json"})).at(0); };
  const ordered_json before = look();
  Run({"generate", "--token_ids=311,17,977,42,1021,5", "--max_tokens=8", "--temperature=0", "--ignore_eos"});
  const ordered_json after = look();
  EXPECT_EQ(after["prefill_tokens"].get<int>() - before["prefill_tokens"].get<int>(), 6);
  EXPECT_EQ(after["decode_tokens"].get<int>() - before["decode_tokens"].get<int>(), 7);
  ASSERT_EQ(after["layers"].size(), 8u);
  for (size_t layer = 0; layer < 8; ++layer) {
    int rows = 0;
    for (size_t e = 0; e < 16; ++e) {
      const ordered_json& expert = after["layers"][layer]["experts"][e];
      rows += expert["decode_rows"].get<int>() - before["layers"][layer]["experts"][e]["decode_rows"].get<int>();
      EXPECT_EQ(expert["workers"].size(), 1u);
    }
    EXPECT_EQ(rows, 7 * 2) << "layer " << layer;
  }
  EXPECT_THAT(Run({"experts"}), testing::HasSubstr("8 MoE layers, 16 experts of which 2 per token"));
  EXPECT_THAT(Run({"experts", "--layer=3"}), testing::HasSubstr("layer 3: busiest expert"));
  EXPECT_THAT(Run({"experts", "--layer=8"}, 1), testing::HasSubstr("MoE layers 0 to 7"));
}

// Workers measure their links when the group forms; steps of one machine's workers have nothing to hide.
TEST_F(CliTest, PlanSaysHowStepsRun) {
  Run({"generate", "--token_ids=311,17,977,42,1021,5", "--max_tokens=16", "--temperature=0", "--ignore_eos"});
  const ordered_json plan = JsonLines(Run({"plan", "--json"})).at(0);
  EXPECT_GT(plan["link_bytes_per_second"].get<double>(), 1e5);
  EXPECT_GE(plan["link_start_seconds"].get<double>(), 0);
  EXPECT_GT(plan["expert_row_seconds"].get<double>(), 0);
  EXPECT_THAT(Run({"plan", "--why"}), testing::HasSubstr("an all-to-all takes"));
}

// Without a user of predictions nothing is predicted, and nothing moves.
TEST_F(CliTest, PredictorsOfAServerThatPredictsNothing) {
  EXPECT_THAT(Run({"experts", "--estimators", "--layer=3"}),
              testing::HasSubstr("layer 3\n  nothing is foreseen of it, or no worker has told yet\n"));
  const ordered_json answer = JsonLines(Run({"experts", "--json"})).at(0);
  EXPECT_TRUE(answer["layers"][3]["estimators"].empty());
  EXPECT_FALSE(answer["layers"][3]["experts"][0].contains("now"));
}

TEST_F(CliTest, AnExpertsPlaceIsExplained) {
  EXPECT_THAT(Run({"experts"}), testing::HasSubstr("placement: auto\n"));
  // Two workers, 16 experts: neighbours share one.
  EXPECT_THAT(
      Run({"experts", "--why=8,3"}),
      testing::MatchesRegex("Layer 3, expert 8 was chosen by [0-9]+ of [0-9]+ counted tokens; it lives on worker "
                            "1, with its neighbours\\.( Any worker can compute it, as all are on one machine\\.)?\n"));
  const ordered_json answer = JsonLines(Run({"experts", "--why=8,3", "--layer=3", "--json"})).at(0);
  EXPECT_THAT(answer["why"].get<std::string>(), testing::HasSubstr("Layer 3, expert 8"));
  EXPECT_EQ(answer["placement"], "auto");
  EXPECT_THAT(Run({"experts", "--why=0,8"}, 1), testing::HasSubstr("why.layer: is 8; the model has 0 to 7"));
  EXPECT_THAT(Run({"experts", "--why=16,0"}, 1), testing::HasSubstr("why.expert: is 16; the model has 0 to 15"));
}

// From a pipe, with errors printed while other threads answer: no line is written twice or in pieces.
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
