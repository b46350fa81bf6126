// `switchyard keys new`, and how commands find their key.
#include <sys/stat.h>

#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/api_key.h"
#include "tests/clients/cli_run.h"
#include "tests/clients/fake_server.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(KeysCommandTest, PrintsAKeyAndItsLine) {
  const client::CliRun run =
      client::RunCliWith({"keys", "new", "--name=alice", "--role=user", "--tokens_per_minute=900", "--disk_gib=4"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  ASSERT_THAT(run.out, StartsWith("key:  sy-"));
  const std::string key = run.out.substr(6, run.out.find('\n') - 6);
  EXPECT_EQ(run.out.substr(6 + key.size()),
            absl::StrCat("\nline: alice user sha256:", absl::BytesToHexString(rpc::DigestOfKey(key)),
                         " tokens_per_minute=900 disk_gib=4\n"));
  EXPECT_THAT(run.err, Not(HasSubstr(key)));
  EXPECT_NE(client::RunCliWith({"keys", "new", "--name=alice", "--role=user"}).out.substr(0, 73),
            run.out.substr(0, 73));
}

TEST(KeysCommandTest, BadFlagsAreNamed) {
  EXPECT_EQ(client::RunCliWith({"keys", "new", "--name=alice"}).exit_code, 2);
  const client::CliRun role = client::RunCliWith({"keys", "new", "--name=alice", "--role=root"});
  EXPECT_EQ(role.exit_code, 2);
  EXPECT_THAT(role.err, HasSubstr("must be user, trainer or admin"));
  EXPECT_THAT(client::RunCliWith({"keys", "new", "--name=a b", "--role=user"}).err, HasSubstr("--name must be"));
}

// Returns the metadata `authorization` of a Generate call that the CLI makes with these flags.
std::string SentWith(const std::vector<std::string>& flags, client::CliRun* run) {
  client::FakeServer server;
  std::string sent = "not called";
  server.on_generate = [&sent](grpc::ServerContext* context, const auto&, auto*) {
    const auto value = context->client_metadata().find("authorization");
    sent = value == context->client_metadata().end() ? "" : std::string(value->second.data(), value->second.size());
    return grpc::Status::OK;
  };
  std::vector<std::string> args = {"generate", "hi", server.flag()};
  args.insert(args.end(), flags.begin(), flags.end());
  *run = client::RunCliWith(args);
  return sent;
}

TEST(ApiKeyFlagTest, TheFileOrTheEnvironmentGivesTheKey) {
  const model::TempDir dir;
  const std::string file = dir.Write("key", "sy-file\n");
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  client::CliRun run;
  unsetenv("SWITCHYARD_API_KEY");
  EXPECT_EQ(SentWith({}, &run), "");
  EXPECT_EQ(SentWith({"--api_key_file=" + file}, &run), "Bearer sy-file");
  setenv("SWITCHYARD_API_KEY", "sy-environment", 1);
  EXPECT_EQ(SentWith({}, &run), "Bearer sy-environment");
  EXPECT_EQ(SentWith({"--api_key_file=" + file}, &run), "Bearer sy-file");
  setenv("SWITCHYARD_API_KEY", "two words", 1);
  EXPECT_EQ(SentWith({}, &run), "not called");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("printable ASCII"), Not(HasSubstr("two words"))));
  unsetenv("SWITCHYARD_API_KEY");
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  EXPECT_EQ(SentWith({"--api_key_file=" + file}, &run), "not called");
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("others than its owner may use it"));
  EXPECT_EQ(SentWith({"--api_key_file=" + dir.File("none")}, &run), "not called");
  EXPECT_EQ(run.exit_code, 2);
}

}  // namespace
}  // namespace switchyard::cli
