#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/popularity/trace/trace_file.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_server.h"
#include "tests/clients/routing_server.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TraceCommandTest : public testing::Test {
 protected:
  TraceCommandTest() : path_(absl::StrCat(testing::TempDir(), "/trace-", getpid())) {
    client::RouteByTokenAndPosition(&server_);
  }
  ~TraceCommandTest() override { unlink(path_.c_str()); }

  client::CliRun Record(std::vector<std::string> args, const std::string& input = "") {
    args.insert(args.begin(), {"trace", "record", server_.flag(), "--output=" + path_});
    return client::RunCliWith(args, input);
  }
  std::string Bytes() {
    std::ifstream file(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  popularity::RoutingTrace Written() {
    const absl::StatusOr<popularity::RoutingTrace> trace = popularity::ParseTrace(Bytes());
    EXPECT_TRUE(trace.ok()) << trace.status();
    return trace.ok() ? *trace : popularity::RoutingTrace();
  }

  client::FakeServer server_;
  const std::string path_;
};

TEST_F(TraceCommandTest, OneDocumentIsAllPrompt) {
  const client::CliRun run = Record({"--text=abc", "--label=prose"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("[1 documents, 1 sequences, 3 tokens]"));
  const popularity::RoutingTrace trace = Written();
  EXPECT_EQ(trace.model, "weights");
  EXPECT_EQ(trace.shape, (popularity::RoutingShape{.num_layers = 2, .num_experts = 4, .top_k = 1}));
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
  const popularity::RoutingTrace trace = Written();
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
  const client::CliRun run = Record({"--input=-", "--concurrency=7", "--label=unused"}, input);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::vector<std::string> wanted, found;
  for (int i = 0; i < 20; ++i) {
    for (int left = i + 1; left > 0; left -= 10) wanted.push_back(absl::StrCat(i, ":", std::min(left, 10)));
  }
  for (const popularity::TraceSequence& sequence : Written().sequences) {
    found.push_back(absl::StrCat(sequence.label, ":", sequence.num_tokens()));
  }
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(Record({"--text=abcdefg", "--window=3"}).exit_code, 0);
  EXPECT_EQ(Written().sequences.size(), 3u) << "the file was written anew";
}

TEST_F(TraceCommandTest, ABadLineIsNamedAndLeftOut) {
  const client::CliRun run = Record({"--input=-"},
                                    "{\"text\": \"ab\"}\n{\"text\": \"ab\", \"n\": 2}\n[]\n{\"text\": \"\"}\n"
                                    "{\"text\": \"a\", \"label\": 5}\n{\"text\": \"a\", \"max_tokens\": 11}\n");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("line 2: n must be 1"), HasSubstr("line 3: a line must be a JSON object"),
                             HasSubstr("line 4: the document has no tokens"), HasSubstr("line 5: label must be a text"),
                             HasSubstr("line 6: max_tokens 11 leaves no room for a prompt in 11 tokens"),
                             HasSubstr("5 documents failed")));
  EXPECT_EQ(Written().sequences.size(), 1u);
}

TEST_F(TraceCommandTest, AServerThatReportsTooLittleIsCaught) {
  server_.on_generate = nullptr;  // tokens, no paths
  const client::CliRun run = Record({"--text=abc"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err,
              HasSubstr("expert paths from position 0, 0 bytes of [0, 0] a token; wanted from 0, 12 of [2, 1]"));
  server_.model.set_num_moe_layers(0);
  EXPECT_THAT(Record({"--text=abc"}).err, HasSubstr("has 0 MoE layers of 4 experts, 1 a token: no trace"));
}

TEST_F(TraceCommandTest, FlagsThatMakeNoSense) {
  EXPECT_EQ(client::RunCliWith({"trace"}).exit_code, 2);
  EXPECT_EQ(client::RunCliWith({"trace", "record", "--text=a"}).exit_code, 2) << "no --output";
  const client::CliRun nothing = Record({});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("give --input=FILE, --text=TEXT or --token_ids=IDS"));
  EXPECT_THAT(Record({"--text=a", "--input=-"}, "{\"token_ids\": [1]}\n").err,
              HasSubstr("exactly one of text, token_ids, messages"));
  const client::CliRun unwritable =
      client::RunCliWith({"trace", "record", server_.flag(), "--text=a", "--output=/no/such/place"});
  EXPECT_EQ(unwritable.exit_code, 2);
  EXPECT_THAT(unwritable.err, HasSubstr("--output=/no/such/place: No such file or directory"));
  EXPECT_THAT(Record({"--text=a", "--windw=3"}).err, HasSubstr("did you mean \"--window\"?"));
  EXPECT_THAT(client::RunCliWith({"help", "trace", "record"}).out, HasSubstr("--window"));
  EXPECT_THAT(client::RunCliWith({"trace", "recrd"}).err, HasSubstr("did you mean \"record\"?"));
}

TEST_F(TraceCommandTest, ShowSaysWhatATraceHolds) {
  ASSERT_EQ(Record({"--text=aaab", "--label=prose", "--max_tokens=3"}).exit_code, 0);
  const client::CliRun run = client::RunCliWith({"trace", "show", path_});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("model: weights\n"), HasSubstr("2 MoE layers, 4 experts, top-1\n"),
                             HasSubstr("1 sequences (prose 1), 6 tokens, 4 of prompts\n"),
                             // Tokens a a a b 100 101: experts 1 1 1 2 0 1.
                             HasSubstr("layer 0: busiest expert 2.67 times the mean; most chosen: 1 (66.7%)")));
}

TEST_F(TraceCommandTest, ReplayRunsPredictorsAndPlacements) {
  ASSERT_EQ(Record({"--text=abcdefgh", "--max_tokens=3"}).exit_code, 0);
  const client::CliRun run = client::RunCliWith(
      {"trace", "replay", path_, "--workers=2", "--batch_tokens=2", "--spare_slots=1", "--phase=prefill"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("5 batches of 2 tokens, prefill, 2 workers\n"), HasSubstr("\nstatic "),
                             HasSubstr("\nagreed "), HasSubstr("\nmarginal "), HasSubstr("\npath ")));
}

TEST_F(TraceCommandTest, OfATornFileWholeSequencesAreTaken) {
  ASSERT_EQ(Record({"--text=abcdefgh", "--max_tokens=3"}).exit_code, 0);
  std::string bytes = Bytes();
  const std::string whole = bytes;
  // Begins a second sequence without its content.
  bytes += "SEQ1";
  std::ofstream(path_, std::ios::binary) << bytes;
  client::CliRun run = client::RunCliWith({"trace", "show", path_});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("1 sequences"));
  EXPECT_THAT(run.err, AllOf(HasSubstr("sequence 1: byte"), HasSubstr("truncated"), HasSubstr("taking the 1 ")));
  // A damaged file is refused, not cut like an interrupted one.
  bytes[whole.size() - 9] ^= 1;
  std::ofstream(path_, std::ios::binary) << bytes;
  EXPECT_EQ(client::RunCliWith({"trace", "show", path_}).exit_code, 2);
  std::ofstream(path_, std::ios::binary) << whole.substr(0, whole.size() - 1);
  run = client::RunCliWith({"trace", "show", path_});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("truncated"));
}

TEST_F(TraceCommandTest, WhatIsNoTraceIsNamed) {
  for (const char* command : {"show", "replay"}) {
    client::CliRun run = client::RunCliWith({"trace", command, path_ + ".none"});
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.err, HasSubstr("trace-")) << run.err;
    std::ofstream(path_) << "no trace";
    run = client::RunCliWith({"trace", command, path_});
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_THAT(run.err, HasSubstr("byte 0"));
  }
  ASSERT_EQ(Record({"--text=abcdefgh", "--max_tokens=3"}).exit_code, 0);
  const client::CliRun run = client::RunCliWith({"trace", "replay", path_, "--workers=9"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("workers is 9, wants 1 to 4, the experts"));
}

// Sampling flags have no effect on a document without generated tokens after the first.
TEST_F(TraceCommandTest, SamplingWithoutGeneratingIsRefused) {
  const client::CliRun run = Record({"--text=abc", "--temperature=0.5"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--temperature has no effect on a document: it goes with --max_tokens above 1"));
  EXPECT_TRUE(server_.requests().empty());
  EXPECT_EQ(Record({"--text=abc", "--temperature=0.5", "--max_tokens=2"}).exit_code, 0);
  EXPECT_EQ(Record({"--input=-", "--temperature=0.5"}, "{\"text\": \"a\", \"max_tokens\": 3}\n").exit_code, 0)
      << "a default of lines that generate";
  for (const std::vector<std::string>& help :
       {std::vector<std::string>{"trace", "record", "--help"}, {"profile", "--help"}}) {
    const std::string text = client::RunCliWith(help).out;
    EXPECT_THAT(text, testing::Not(HasSubstr("--skip_special_tokens"))) << help[0];
    const size_t group = text.find("With --max_tokens above 1:"), flag = text.find("--temperature");
    EXPECT_NE(group, std::string::npos) << help[0];
    EXPECT_LT(group, flag) << help[0];
  }
}

}  // namespace
}  // namespace switchyard::cli
