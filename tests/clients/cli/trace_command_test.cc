#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/trace_file.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_server.h"

namespace switchyard {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A model of two MoE layers of four experts, top-1: token t at position p goes to experts t % 4 and p % 4.
class TraceCommandTest : public testing::Test {
 protected:
  TraceCommandTest() : path_(absl::StrCat(testing::TempDir(), "/trace-", getpid())) {
    server_.model.set_num_moe_layers(2);
    server_.model.set_num_experts(4);
    server_.model.set_experts_per_token(1);
    server_.model.set_max_model_len(11);
    server_.model.set_weights_hash("weights");
    server_.on_generate = [](grpc::ServerContext*, const v1::GenerateRequest& request,
                             grpc::ServerWriter<v1::GenerateResponse>* writer) {
      std::vector<int32_t> tokens(request.token_ids().ids().begin(), request.token_ids().ids().end());
      const int prompt = static_cast<int>(tokens.size());
      for (int i = 0; i < request.max_tokens(); ++i) tokens.push_back(100 + i);
      int told = 0;
      for (int i = 0; i < request.max_tokens(); ++i) {
        v1::GenerateResponse message = Part(0, i, "", i + 1 == request.max_tokens());
        v1::ExpertPaths* paths = message.mutable_expert_paths();
        paths->set_first_position(told);
        paths->set_num_moe_layers(2);
        paths->set_top_k(1);
        for (; told < prompt + i; ++told) {
          for (const int expert : {tokens[static_cast<size_t>(told)] % 4, told % 4}) {
            paths->mutable_experts()->append({static_cast<char>(expert), '\0'});
          }
        }
        writer->Write(message);
      }
      return grpc::Status::OK;
    };
  }
  ~TraceCommandTest() override { unlink(path_.c_str()); }

  CliRun Record(std::vector<std::string> args, const std::string& input = "") {
    args.insert(args.begin(), {"trace", "record", server_.flag(), "--output=" + path_});
    return RunCliWith(args, input);
  }
  RoutingTrace Written() {
    std::ifstream file(path_, std::ios::binary);
    const absl::StatusOr<RoutingTrace> trace = ParseTrace(std::string(std::istreambuf_iterator<char>(file), {}));
    EXPECT_TRUE(trace.ok()) << trace.status();
    return trace.ok() ? *trace : RoutingTrace();
  }

  FakeServer server_;
  const std::string path_;
};

TEST_F(TraceCommandTest, OneDocumentIsAllPrompt) {
  const CliRun run = Record({"--text=abc", "--label=prose"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("[1 documents, 1 sequences, 3 tokens]"));
  const RoutingTrace trace = Written();
  EXPECT_EQ(trace.model, "weights");
  EXPECT_EQ(trace.shape, (RoutingShape{.num_layers = 2, .num_experts = 4, .top_k = 1}));
  ASSERT_EQ(trace.sequences.size(), 1u);
  EXPECT_EQ(trace.sequences[0].label, "prose");
  EXPECT_EQ(trace.sequences[0].num_prompt, 3);
  EXPECT_THAT(trace.sequences[0].token_ids, ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(trace.sequences[0].experts, ElementsAre('a' % 4, 0, 'b' % 4, 1, 'c' % 4, 2));
  ASSERT_EQ(server_.requests().size(), 1u);
  EXPECT_TRUE(server_.requests()[0].return_expert_paths());
  EXPECT_EQ(server_.requests()[0].max_tokens(), 1);
}

TEST_F(TraceCommandTest, WhatIsGeneratedFollowsThePromptButForItsLastToken) {
  EXPECT_EQ(Record({"--token_ids=8,9", "--max_tokens=3"}).exit_code, 0);
  const RoutingTrace trace = Written();
  ASSERT_EQ(trace.sequences.size(), 1u);
  EXPECT_EQ(trace.sequences[0].num_prompt, 2);
  EXPECT_THAT(trace.sequences[0].token_ids, ElementsAre(8, 9, 100, 101));
  EXPECT_THAT(trace.sequences[0].experts, ElementsAre(0, 0, 1, 1, 0, 2, 1, 3));
}

TEST_F(TraceCommandTest, LinesKeepTheirOrderAndLongDocumentsAreCut) {
  std::string input;
  for (int i = 0; i < 20; ++i)
    absl::StrAppend(&input, "{\"text\": \"", std::string(static_cast<size_t>(i + 1), 'x'), "\", \"label\": \"", i,
                    "\"}\n");
  const CliRun run = Record({"--input=-", "--concurrency=7", "--label=unused"}, input);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::vector<std::string> wanted, found;
  for (int i = 0; i < 20; ++i) {
    for (int left = i + 1; left > 0; left -= 10) wanted.push_back(absl::StrCat(i, ":", std::min(left, 10)));
  }
  for (const TraceSequence& sequence : Written().sequences) {
    found.push_back(absl::StrCat(sequence.label, ":", sequence.num_tokens()));
  }
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(Record({"--text=abcdefg", "--window=3"}).exit_code, 0);
  EXPECT_EQ(Written().sequences.size(), 3u) << "the file was written anew";
}

TEST_F(TraceCommandTest, ABadLineIsNamedAndLeftOut) {
  const CliRun run = Record({"--input=-"},
                            "{\"text\": \"ab\"}\n{\"text\": \"ab\", \"n\": 2}\n[]\n{\"text\": \"\"}\n"
                            "{\"text\": \"a\", \"label\": 5}\n{\"text\": \"a\", \"max_tokens\": 11}\n");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("line 2: n must be 1"), HasSubstr("line 3: a line must be a JSON object"),
                             HasSubstr("line 4: the document has no tokens"), HasSubstr("line 5: label must be a text"),
                             HasSubstr("line 6: max_tokens 11 leaves no room for a prompt in 11 tokens"),
                             HasSubstr("5 documents failed")));
  EXPECT_EQ(Written().sequences.size(), 1u);
}

TEST_F(TraceCommandTest, AServerThatTellsTooLittleIsCaught) {
  server_.on_generate = nullptr;  // tokens, no paths
  const CliRun run = Record({"--text=abc"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err,
              HasSubstr("expert paths from position 0, 0 bytes of [0, 0] a token; wanted from 0, 12 of [2, 1]"));
  server_.model.set_num_moe_layers(0);
  EXPECT_THAT(Record({"--text=abc"}).err, HasSubstr("has 0 MoE layers of 4 experts, 1 a token: no trace"));
}

TEST_F(TraceCommandTest, FlagsThatMakeNoSense) {
  EXPECT_EQ(RunCliWith({"trace"}).exit_code, 2);
  EXPECT_EQ(RunCliWith({"trace", "record", "--text=a"}).exit_code, 2) << "no --output";
  const CliRun nothing = Record({});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("give --input=FILE, --text=TEXT or --token_ids=IDS"));
  EXPECT_THAT(Record({"--text=a", "--input=-"}, "{\"token_ids\": [1]}\n").err,
              HasSubstr("exactly one of text, token_ids, messages"));
  const CliRun unwritable = RunCliWith({"trace", "record", server_.flag(), "--text=a", "--output=/no/such/place"});
  EXPECT_EQ(unwritable.exit_code, 2);
  EXPECT_THAT(unwritable.err, HasSubstr("--output=/no/such/place: No such file or directory"));
  EXPECT_THAT(Record({"--text=a", "--windw=3"}).err, HasSubstr("did you mean \"--window\"?"));
  EXPECT_THAT(RunCliWith({"help", "trace", "record"}).out, HasSubstr("--window"));
  EXPECT_THAT(RunCliWith({"trace", "recrd"}).err, HasSubstr("did you mean \"record\"?"));
}

}  // namespace
}  // namespace switchyard
