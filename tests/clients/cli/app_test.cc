#include "clients/cli/app.h"

#include <ostream>
#include <sstream>
#include <streambuf>

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
       {"unexpected argument \"y\": the prompt is already \"x\"; a text with spaces stands in quotes: \"x y\"\n",
        "unknown flag --max_token; did you mean \"--max_tokens\"?\n",
        "--concurrency=many: must be a number from 1 to 1024\n", "--timeout=0: must be a number from 0.001 to 86400\n",
        "--server: is given 2 times; give it once\n", "--input: needs a value: --input=FILE\n"}) {
    EXPECT_THAT(run.err, HasSubstr(part));
  }
  EXPECT_THAT(client::RunCliWith({"bench", "--seed=x"}).err, HasSubstr("--seed=x: must be a number\n"));
  EXPECT_THAT(client::RunCliWith({"data", "pack"}).err,
              AllOf(HasSubstr("inputs is required"), HasSubstr("--output is required")));
  EXPECT_THAT(client::RunCliWith({"trace", "replay", "t", "--phase=both"}).err,
              HasSubstr("--phase: both not in {prefill,decode}\n"));
  EXPECT_THAT(client::RunCliWith({"train"}).err,
              AllOf(HasSubstr("a command is missing; known are: submit, "), HasSubstr("switchyard help train")));
}

// What a shell makes of a prompt without quotes.
TEST(AppTest, ASecondPromptIsRefused) {
  EXPECT_THAT(client::RunCliWith({"generate", "The", "sea", "is", "--max_tokens=4"}).err,
              HasSubstr("switchyard: unexpected arguments \"sea\", \"is\": the prompt is already \"The\"; a text with "
                        "spaces stands in quotes: \"The sea is\"\n"));
  EXPECT_THAT(client::RunCliWith({"tokenize", "a", "b"}).err, HasSubstr("the prompt is already \"a\""));
  EXPECT_THAT(client::RunCliWith({"train", "get", "one", "two"}).err,
              HasSubstr("unexpected argument \"two\": the id is already \"one\"\n"));
  EXPECT_THAT(client::RunCliWith({"status", "now"}).err,
              HasSubstr("unexpected argument \"now\"; flags look like --name=value\n"));
}

TEST(AppTest, UnknownCommandsOfACommandSuggest) {
  const client::CliRun run = client::RunCliWith({"train", "submitt"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("unknown command \"submitt\"; did you mean \"submit\"?\n"));
  const client::CliRun help = client::RunCliWith({"help", "generat"});
  EXPECT_EQ(help.exit_code, 2);
  EXPECT_THAT(help.err, HasSubstr("unknown command \"generat\"; did you mean \"generate\"?\n"));
  EXPECT_THAT(client::RunCliWith({"xyzzy"}).err, HasSubstr("unknown command \"xyzzy\"; known are: generate, chat, "));
}

TEST(AppTest, NamesOfOtherProgramsAreExplained) {
  const auto complaint = [](const char* flag) { return client::RunCliWith({"generate", "x", flag}).err; };
  EXPECT_THAT(complaint("--host=h"), HasSubstr("unknown flag --host; the server is named by --server=HOST:PORT\n"));
  EXPECT_THAT(complaint("-p"), HasSubstr("unknown flag -p; the prompt is an argument without a name, or --text\n"));
  EXPECT_THAT(complaint("--prompt=x"), HasSubstr("or --text\n"));
  EXPECT_THAT(complaint("--max-new-tokens=3"), HasSubstr("here it is --max_tokens\n"));
  EXPECT_THAT(complaint("--api_key=secret"),
              AllOf(HasSubstr("--api_key_file=FILE"), testing::Not(HasSubstr("secret"))));
  EXPECT_THAT(complaint("-z"), HasSubstr("unknown flag -z; flags look like --name=value\n"));
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

// Takes all bytes and, as a full disk does, refuses to write them; or refuses them at once.
class LateRefusal : public std::stringbuf {
  int sync() override { return -1; }
};
class EarlyRefusal : public std::streambuf {};

TEST(AppTest, OutputThatCannotBeWrittenIsAFailure) {
  LateRefusal late;
  EarlyRefusal early;
  for (std::streambuf* const buffer : std::vector<std::streambuf*>{&late, &early}) {
    for (const std::vector<std::string>& args :
         std::vector<std::vector<std::string>>{{"keys", "new", "--name=alice", "--role=user"}, {"--version"}}) {
      std::istringstream in;
      std::ostream out(buffer);
      std::ostringstream err;
      Console console = {in, out, err};
      EXPECT_EQ(RunCli(args, console), 1) << args[0];
      EXPECT_THAT(err.str(), HasSubstr("switchyard: standard output: cannot be written"));
    }
  }
}

TEST(AppTest, HelpMayBeAskedForWithinAGroup) {
  const client::CliRun whole = client::RunCliWith({"help", "train", "submit"});
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_EQ(client::RunCliWith({"train", "help", "submit"}).out, whole.out);
  EXPECT_EQ(client::RunCliWith({"train", "help"}).out, client::RunCliWith({"help", "train"}).out);
  EXPECT_THAT(client::RunCliWith({"train", "submit", "--nonsense=1"}).err,
              HasSubstr("see: switchyard help train submit\n"));
}

}  // namespace
}  // namespace switchyard::cli
