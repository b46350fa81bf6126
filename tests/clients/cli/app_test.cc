#include "clients/cli/app.h"

#include "absl/strings/str_cat.h"
#include "clients/cli/request_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "switchyard/v1/inference.pb.h"
#include "tests/clients/cli_run.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(AppTest, HelpNamesEveryCommand) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{{}, {"help"}, {"--help"}}) {
    const client::CliRun run = client::RunCliWith(args);
    EXPECT_EQ(run.exit_code, 0);
    for (const char* command :
         {"generate", "chat", "tokenize", "detokenize", "status", "bench", "trace", "train", "data"})
      EXPECT_THAT(run.out, HasSubstr(command));
    EXPECT_THAT(run.out, HasSubstr("Exit codes"));
  }
}

TEST(AppTest, CommandHelpNamesEveryField) {
  const client::CliRun run = client::RunCliWith({"help", "generate"});
  EXPECT_EQ(run.exit_code, 0);
  for (const auto& field : RequestFields<v1::GenerateRequest>())
    EXPECT_THAT(run.out, HasSubstr(absl::StrCat("--", field.name)));
  EXPECT_THAT(run.out, AllOf(HasSubstr("127.0.0.1:50051"), HasSubstr("--concurrency"), HasSubstr("Examples:")));
  EXPECT_EQ(client::RunCliWith({"generate", "--help"}).out, run.out);
  EXPECT_THAT(client::RunCliWith({"help", "bench"}).out, AllOf(HasSubstr("--rate"), HasSubstr("requests per second")));
}

TEST(AppTest, Version) { EXPECT_THAT(client::RunCliWith({"--version"}).out, testing::Eq("switchyard unknown\n")); }

TEST(AppTest, UnknownCommandSuggests) {
  const client::CliRun run = client::RunCliWith({"genrate", "x"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("did you mean \"generate\"?"));
  EXPECT_EQ(run.out, "");
}

TEST(AppTest, UnknownFlagSuggests) {
  const client::CliRun run = client::RunCliWith({"generate", "x", "--max_token=5"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("did you mean \"--max_tokens\"?"), HasSubstr("switchyard help generate")));
}

TEST(AppTest, HelpIsGroupedWithWhatIsUsedMostFirst) {
  const std::string page = client::RunCliWith({"generate", "--help"}).out;
  EXPECT_THAT(page, testing::StartsWith("generate text from a prompt"));
  size_t last = 0;
  for (const char* part : {"Usage: switchyard generate [PROMPT] [--flag=value ...]", "Prompt:", "--text=TEXT",
                           "Sampling:", "--max_tokens=NUMBER", "Answer:", "--logprobs=NUMBER",
                           "Input and output:", "--input=FILE", "Server:", "--server=HOST:PORT", "Examples:"}) {
    const size_t at = page.find(part);
    ASSERT_NE(at, std::string::npos) << part;
    EXPECT_GT(at, last) << part;
    last = at;
  }
  EXPECT_THAT(client::RunCliWith({"help", "trace"}).out,
              AllOf(HasSubstr("Usage: switchyard trace COMMAND"), HasSubstr("replay")));
  EXPECT_THAT(client::RunCliWith({"train", "get", "-h"}).out,
              HasSubstr("Usage: switchyard train get ID [--flag=value ...]"));
}

TEST(AppTest, EveryProblemIsReportedAtOnce) {
  const client::CliRun run = client::RunCliWith({"generate", "x", "y", "--max_token=5", "--concurrency=many",
                                                 "--timeout=0", "--server=a", "--server=b", "--input"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.out, "");
  for (const char* part :
       {"The following argument was not expected: y\n", "The following argument was not expected: --max_token=5\n",
        "--concurrency: Value many not in range 1 to 1024\n", "--timeout: Value 0 not in range 0.001 to 86400\n",
        "--server: At Most 1 required but received 2\n", "--input: 1 required FILE missing\n"}) {
    EXPECT_THAT(run.err, HasSubstr(part));
  }
  EXPECT_THAT(client::RunCliWith({"bench", "--seed=x"}).err, HasSubstr("Could not convert: --seed = x\n"));
  EXPECT_THAT(client::RunCliWith({"data", "pack"}).err,
              AllOf(HasSubstr("inputs is required"), HasSubstr("--output is required")));
  EXPECT_THAT(client::RunCliWith({"trace", "replay", "t", "--phase=both"}).err,
              HasSubstr("--phase: both not in {prefill,decode}\n"));
  EXPECT_THAT(client::RunCliWith({"train"}).err,
              AllOf(HasSubstr("A subcommand is required"), HasSubstr("switchyard help train")));
}

TEST(AppTest, WrongValuesNameTheFlag) {
  EXPECT_THAT(client::RunCliWith({"generate", "x", "--temperature=hot"}).err,
              HasSubstr("--temperature must be a number, is \"hot\""));
  EXPECT_EQ(client::RunCliWith({"generate", "x", "--temperature=hot"}).exit_code, 2);
  EXPECT_THAT(client::RunCliWith({"generate", "x", "--concurrency=0"}).err, HasSubstr("--concurrency"));
  EXPECT_EQ(client::RunCliWith({"bench", "--rate=2", "--concurrency=2"}).exit_code, 2);
}

TEST(AppTest, WithoutAPromptItSaysHowToGiveOne) {
  const client::CliRun run = client::RunCliWith({"generate"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("exactly one of text, token_ids, messages"), HasSubstr("--text=TEXT")));
}

TEST(AppTest, WithoutAServerItSaysHowToStartOne) {
  for (const char* command : {"generate", "tokenize", "chat", "status", "bench"}) {
    std::vector<std::string> args = {command, "--server=127.0.0.1:1"};
    if (std::string(command) == "generate" || std::string(command) == "tokenize") args.push_back("x");
    const client::CliRun run = client::RunCliWith(args);
    EXPECT_EQ(run.exit_code, 1) << command;
    EXPECT_THAT(run.err,
                AllOf(HasSubstr("cannot reach 127.0.0.1:1"), HasSubstr("is the server running? start it with")))
        << command;
  }
}

}  // namespace
}  // namespace switchyard::cli
