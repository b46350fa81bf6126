#include "clients/cli/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_server.h"

namespace switchyard::cli {
namespace {

using testing::HasSubstr;

TEST(TextCommandsTest, Tokenize) {
  client::FakeServer server;
  EXPECT_EQ(client::RunCliWith({"tokenize", "ab", server.flag()}).out, "97 98\n");
  EXPECT_EQ(client::RunCliWith({"tokenize", "--text=ab", server.flag(), "--json"}).out,
            "{\"token_ids\":[97,98],\"tokens\":[\"a\",\"b\"]}\n");
  EXPECT_EQ(client::RunCliWith({"tokenize", "", server.flag()}).exit_code, 0);  // no text is a text
  const client::CliRun messages =
      client::RunCliWith({"tokenize", "--messages=[{\"role\": \"u\", \"content\": \"b\"}]", server.flag(), "--json"});
  EXPECT_EQ((*ParseJson(messages.out))["rendered_text"], "<u>b");
}

TEST(TextCommandsTest, Detokenize) {
  client::FakeServer server;
  EXPECT_EQ(client::RunCliWith({"detokenize", "97,98", server.flag()}).out, "ab\n");
  EXPECT_EQ(client::RunCliWith({"detokenize", "97", "98", server.flag()}).out, "ab\n");
  EXPECT_EQ(client::RunCliWith({"detokenize", "--token_ids=97 98", server.flag(), "--json"}).out,
            "{\"text\":\"ab\"}\n");
  const client::CliRun wrong = client::RunCliWith({"detokenize", "97,400", server.flag()});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("400 outside [0, 128)"));
}

TEST(TextCommandsTest, ASecondTextIsRefused) {
  client::FakeServer server;
  const client::CliRun run = client::RunCliWith({"tokenize", "a", "--text=b", server.flag()});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("2 inputs: \"a\" and --text; give one of them\n"));
  EXPECT_THAT(client::RunCliWith({"detokenize", "5", "9", "--token_ids=7", server.flag()}).err,
              HasSubstr("2 inputs: \"5 9\" and --token_ids;"));
}

TEST(TextCommandsTest, JsonLines) {
  client::FakeServer server;
  const client::CliRun run =
      client::RunCliWith({"tokenize", "--input=-", server.flag(), "--json"},
                         "{\"text\": \"a\", \"add_special_tokens\": true}\n{\"text\": \"b\", \"tools\": null}\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "{\"token_ids\":[97],\"tokens\":[\"a\"]}\n{\"token_ids\":[98],\"tokens\":[\"b\"]}\n");
  const client::CliRun back =
      client::RunCliWith({"detokenize", "--input=-", server.flag(), "--json"},
                         "{\"token_ids\": [97], \"skip_special_tokens\": true}\n{\"token_ids\": [500]}\n");
  EXPECT_EQ(back.exit_code, 1);
  EXPECT_THAT(back.out,
              HasSubstr("{\"text\":\"a\"}\n{\"error\":{\"code\":\"INVALID_ARGUMENT\",\"reason\":\"BAD_FIELD\""));
}

}  // namespace
}  // namespace switchyard::cli
