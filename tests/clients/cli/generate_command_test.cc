#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "clients/cli/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_server.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Json> Lines(const std::string& text) {
  std::vector<Json> out;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) out.push_back(*ParseJson(line));
  return out;
}

TEST(GenerateCommandTest, StreamsTextAndSumsUp) {
  client::FakeServer server;
  const client::CliRun run = client::RunCliWith({"generate", "The sea is", server.flag(), "--max_tokens=3",
                                                 "--temperature=0", "--stop=a", "--stop=b", "--ignore_eos"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "t0 t1 t2\n");
  EXPECT_THAT(run.err, AllOf(HasSubstr("3 tokens in"), HasSubstr("tokens/s"),
                             HasSubstr("prompt 3 tokens, 2 cached; length; seed 7")));
  const v1::GenerateRequest request = server.requests().at(0);
  EXPECT_EQ(request.text(), "The sea is");
  EXPECT_THAT(request.stop(), ElementsAre("a", "b"));
  EXPECT_TRUE(request.ignore_eos());
  EXPECT_EQ(request.sampling().temperature(), 0);
}

TEST(GenerateCommandTest, AnEmptyValueIsNotTheNextArgument) {
  client::FakeServer server;
  const client::CliRun run = client::RunCliWith(
      {"generate", "--request_id=", "--text=a=", "--stop=", server.flag(), "--max_tokens=3", "--stop=x="});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const v1::GenerateRequest request = server.requests().at(0);
  EXPECT_EQ(request.text(), "a=");
  EXPECT_EQ(request.max_tokens(), 3);
  EXPECT_THAT(request.stop(), ElementsAre("", "x="));
  EXPECT_EQ(request.request_id(), "");
  EXPECT_EQ(client::RunCliWith({"generate", "--text=", server.flag(), "--max_tokens=4"}).exit_code, 0);
  EXPECT_EQ(server.requests().at(1).text(), "");
  EXPECT_EQ(server.requests().at(1).max_tokens(), 4);
}

TEST(GenerateCommandTest, OneAnswerAsJson) {
  client::FakeServer server;
  const client::CliRun run =
      client::RunCliWith({"generate", "--token_ids=5,9", server.flag(), "--json", "--ignore_eos=false"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const Json answer = Lines(run.out).at(0);
  EXPECT_EQ(answer["text"], "t0 t1 t2 t3");
  EXPECT_EQ(answer["token_ids"], Json({100, 101, 102, 103}));
  EXPECT_EQ(answer["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 4);
  EXPECT_EQ(answer["timings"]["decode_seconds"], 0.5);
  EXPECT_TRUE(server.requests().at(0).has_ignore_eos());
  EXPECT_FALSE(server.requests().at(0).ignore_eos());
}

TEST(GenerateCommandTest, AModelWithoutTextShowsTokenIds) {
  client::FakeServer server;
  server.model.set_has_tokenizer(false);
  const client::CliRun run = client::RunCliWith({"generate", "--token_ids=5,9", server.flag(), "--max_tokens=3"});
  EXPECT_EQ(run.out, "100 101 102\n");
}

// For example an answer that is only an end token: its text is empty, its ids are not.
TEST(GenerateCommandTest, AnEmptyTextIsEmpty) {
  client::FakeServer server;
  server.model.set_has_tokenizer(true);
  server.on_generate = [](auto*, const v1::GenerateRequest& request, auto* writer) {
    for (int choice = 0; choice < (request.has_n() ? request.n() : 1); ++choice)
      writer->Write(client::Part(choice, 0, "", true));
    return grpc::Status::OK;
  };
  EXPECT_EQ(client::RunCliWith({"generate", "x", server.flag()}).out, "\n");
  EXPECT_EQ(client::RunCliWith({"generate", "x", "--n=2", server.flag()}).out, "[0] \n[1] \n");
  const std::string lines = "{\"text\": \"a\"}\n{\"token_ids\": [5]}\n";
  EXPECT_EQ(client::RunCliWith({"generate", "--input=-", server.flag()}, lines).out, "\n\n");
  server.model.set_has_tokenizer(false);
  EXPECT_EQ(client::RunCliWith({"generate", "--input=-", server.flag()}, "{\"token_ids\": [5]}\n").out, "100\n");
}

TEST(GenerateCommandTest, ChoicesAreShownWhenWhole) {
  client::FakeServer server;
  server.on_generate = [](auto*, const v1::GenerateRequest& request, auto* writer) {
    for (int i = 0; i < 2; ++i) {
      for (int choice = request.n() - 1; choice >= 0; --choice)
        writer->Write(client::Part(choice, i, absl::StrCat("c", choice, "i", i), i == 1));
    }
    return grpc::Status::OK;
  };
  EXPECT_EQ(client::RunCliWith({"generate", "x", "--n=2", server.flag()}).out, "[0] c0i0c0i1\n[1] c1i0c1i1\n");
  EXPECT_EQ(Lines(client::RunCliWith({"generate", "x", "--n=2", server.flag(), "--json"}).out)[0]["choices"].size(),
            2u);
}

// Requests are under way together, answers come in the order of the input, flags are defaults of the lines.
TEST(GenerateCommandTest, JsonLinesInOrder) {
  client::FakeServer server;
  absl::Mutex mu;
  int arrived = 0;
  server.on_generate = [&](auto*, const v1::GenerateRequest& request, auto* writer) {
    absl::MutexLock lock(&mu);
    ++arrived;
    const auto all_here = [&arrived] { return arrived >= 3; };
    EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&all_here), absl::Seconds(20)))
        << "the three were not sent together";
    writer->Write(client::Part(0, 0, request.text(), true));
    return grpc::Status::OK;
  };
  const client::CliRun run =
      client::RunCliWith({"generate", server.flag(), "--input=-", "--json", "--concurrency=3", "--max_tokens=9"},
                         "{\"text\": \"one\"}\n\n{\"text\": \"two\", \"max_tokens\": 4}\n{\"text\": \"three\"}\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::vector<std::string> texts;
  for (const Json& line : Lines(run.out)) texts.push_back(line["text"]);
  EXPECT_THAT(texts, ElementsAre("one", "two", "three"));
  for (const v1::GenerateRequest& request : server.requests())
    EXPECT_EQ(request.max_tokens(), request.text() == "two" ? 4 : 9);
}

TEST(GenerateCommandTest, AFailedLineIsAnErrorAndTheOthersGoOn) {
  client::FakeServer server;
  server.on_generate = [](auto*, const v1::GenerateRequest& request, auto* writer) {
    if (request.text() == "full") {
      return rpc::ToGrpcStatus(
          rpc::WithRetry(rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL, "no room"),
                         absl::Seconds(90)),
          "r");
    }
    writer->Write(client::Part(0, 0, "ok", true));
    return grpc::Status::OK;
  };
  const client::CliRun run =
      client::RunCliWith({"generate", server.flag(), "--input=-", "--json", "--concurrency=1"},
                         "{\"text\": \"a\"}\n{\"text\": \"full\"}\n{\"txt\": \"c\"}\nnot json\n{\"text\": \"d\"}\n");
  EXPECT_EQ(run.exit_code, 1);
  const std::vector<Json> lines = Lines(run.out);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0]["text"], "ok");
  EXPECT_EQ(lines[1]["error"]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(lines[1]["error"]["reason"], "QUEUE_FULL");
  EXPECT_EQ(lines[1]["error"]["message"], "no room");
  EXPECT_EQ(lines[1]["error"]["retry_after_seconds"], 90.0);
  EXPECT_EQ(lines[2]["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_THAT(lines[2]["error"]["message"].get<std::string>(),
              HasSubstr("line 3: unknown field \"txt\"; did you mean \"text\"?"));
  EXPECT_THAT(lines[3]["error"]["message"].get<std::string>(), HasSubstr("line 4: not valid JSON"));
  EXPECT_EQ(lines[4]["text"], "ok");
  EXPECT_THAT(run.err, HasSubstr("3 requests failed"));
}

TEST(GenerateCommandTest, LinesThatAFullServerRefusesAreAskedAgain) {
  client::FakeServer server;
  std::atomic<int> asked{0};
  server.on_generate = [&asked](auto*, const v1::GenerateRequest&, auto* writer) {
    if (++asked <= 2) {
      return rpc::ToGrpcStatus(
          rpc::WithRetry(rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::TOO_MANY_STREAMS, "no room"),
                         absl::Milliseconds(5)),
          "r");
    }
    writer->Write(client::Part(0, 0, "ok", true));
    return grpc::Status::OK;
  };
  const client::CliRun run = client::RunCliWith({"generate", server.flag(), "--input=-"}, "{\"text\": \"a\"}\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "ok\n");
  EXPECT_EQ(asked, 3);
}

TEST(GenerateCommandTest, AnErrorInMidStreamKeepsWhatCame) {
  client::FakeServer server;
  server.on_generate = [](auto*, const auto&, auto* writer) {
    writer->Write(client::Part(0, 0, "half"));
    return rpc::ToGrpcStatus(rpc::MakeError(absl::StatusCode::kUnavailable, v1::WORKER_LOST, "worker 1 died"), "r");
  };
  const client::CliRun text = client::RunCliWith({"generate", "x", server.flag()});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_EQ(text.out, "half\n");
  EXPECT_THAT(text.err,
              AllOf(HasSubstr("worker 1 died"), HasSubstr("WORKER_LOST"), HasSubstr("switchyard status --wait=60")));
  const Json json = Lines(client::RunCliWith({"generate", "x", server.flag(), "--json"}).out).at(0);
  EXPECT_EQ(json["text"], "half");
  EXPECT_EQ(json["error"]["reason"], "WORKER_LOST");
}

TEST(GenerateCommandTest, AGapInTheStreamIsReported) {
  client::FakeServer server;
  server.on_generate = [](auto*, const auto&, auto* writer) {
    writer->Write(client::Part(0, 0, "a"));
    writer->Write(client::Part(0, 2, "c", true));
    return grpc::Status::OK;
  };
  const client::CliRun run = client::RunCliWith({"generate", "x", server.flag()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("token 2 came, 1 is next"));
}

TEST(GenerateCommandTest, BadUtf8IsNotSent) {
  client::FakeServer server;
  const client::CliRun run = client::RunCliWith({"generate", "ab\xff", server.flag()});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("text is not valid UTF-8 at byte 2"));
  EXPECT_TRUE(server.requests().empty());
}

TEST(GenerateCommandTest, AMissingInputFileIsAUsageError) {
  client::FakeServer server;
  const client::CliRun run = client::RunCliWith({"generate", "--input=/nonexistent/x.jsonl", server.flag()});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("/nonexistent/x.jsonl"));
  const client::CliRun directory = client::RunCliWith({"generate", "--input=/tmp", server.flag()});
  EXPECT_EQ(directory.exit_code, 2);
  EXPECT_THAT(directory.err, HasSubstr("--input=/tmp: is a directory"));
}

TEST(GenerateCommandTest, ASecondPromptIsRefused) {
  client::FakeServer server;
  const auto refusal = [&server](std::vector<std::string> args) {
    args.insert(args.begin(), {"generate", server.flag()});
    const client::CliRun run = client::RunCliWith(args);
    EXPECT_EQ(run.exit_code, 2);
    return run.err;
  };
  EXPECT_THAT(refusal({"a", "--text=b"}), HasSubstr("2 prompts: \"a\" and --text=\"b\"; give one of them\n"));
  EXPECT_THAT(refusal({"a", "--token_ids=5,9"}), HasSubstr("2 prompts: \"a\" and --token_ids=\"[5,9]\";"));
  EXPECT_THAT(refusal({"--text=b", R"(--messages=[{"role":"user","content":"Hi"}])"}),
              HasSubstr("2 prompts: --text=\"b\" and --messages="));
  EXPECT_THAT(refusal({"a", "--input=requests.jsonl"}), HasSubstr("2 prompts: \"a\" and --input=requests.jsonl;"));
  EXPECT_TRUE(server.requests().empty());
}

TEST(GenerateCommandTest, WhatOnlyJsonShowsIsRefusedWithoutIt) {
  client::FakeServer server;
  for (const char* flag : {"--logprobs=2", "--prompt_logprobs=0", "--return_expert_paths"}) {
    const client::CliRun run = client::RunCliWith({"generate", "a", flag, server.flag()});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.err, HasSubstr("is shown with --json only"));
    EXPECT_EQ(client::RunCliWith({"generate", "a", flag, server.flag(), "--json"}).exit_code, 0) << flag;
  }
}

}  // namespace
}  // namespace switchyard::cli
