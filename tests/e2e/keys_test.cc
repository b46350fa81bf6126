// The real server with a keys file, and the real command line, which makes the keys.  No worker is needed.
#include <signal.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/http_client.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kSoon = absl::Seconds(60);

struct Ran {
  int code = -1;
  std::string output;
};
Ran RunProgram(const std::vector<std::string>& args) {
  const std::unique_ptr<Process> process = Process::Start(args);
  if (process == nullptr) return {};
  const int code = process->Wait(kSoon).value_or(-1);
  return {code, process->Output()};
}

std::string After(const std::string& text, const std::string& mark) {
  const size_t begin = text.find(mark) + mark.size();
  return text.substr(begin, text.find_first_of(",\n", begin) - begin);
}

class KeysTest : public testing::Test {
 protected:
  struct Key {
    std::string file, line, key;
  };
  // Makes a key by the command line, and a file of it for clients.
  Key Make(const std::string& name, const std::string& role) {
    const Ran made = RunProgram({Binary("switchyard"), "keys", "new", "--name=" + name, "--role=" + role});
    EXPECT_EQ(made.code, 0) << made.output;
    Key key = {"", After(made.output, "line: "), After(made.output, "key:  ")};
    key.file = Private(name, key.key);
    return key;
  }
  std::string Private(const std::string& name, const std::string& text) {
    const std::string file = dir_.Write(name, text + "\n");
    EXPECT_EQ(chmod(file.c_str(), 0600), 0);
    return file;
  }
  Ran Status(const std::string& server, const std::string& key_file) {
    std::vector<std::string> args = {Binary("switchyard"), "status", "--server=" + server};
    if (!key_file.empty()) args.push_back("--api_key_file=" + key_file);
    return RunProgram(args);
  }
  std::vector<std::string> ServerArgs(const std::string& keys) {
    return {Binary("switchyard-server"),
            std::string("--model=") + kDemoModel,
            "--port=0",
            "--metrics_port=0",
            "--local_workers=0",
            "--workers=1",
            "--join_token_file=" + Private("token", "a token of more than sixteen bytes"),
            "--api_keys_file=" + keys};
  }

  model::TempDir dir_;
};

TEST_F(KeysTest, KeysOfTheCommandLineOpenTheServerAndSighupReadsTheFileAgain) {
  const Key alice = Make("alice", "user"), root = Make("root", "admin"), bob = Make("bob", "user");
  const std::string keys = Private("keys", absl::StrCat("# clients\n", alice.line, "\n", root.line));
  const std::unique_ptr<Process> server = Process::Start(ServerArgs(keys));
  ASSERT_NE(server, nullptr);
  ASSERT_TRUE(server->WaitForOutput("metrics on http://", kSoon)) << server->Output();
  const std::string address = After(server->Output(), "gRPC on ");

  EXPECT_THAT(Status(address, "").output, HasSubstr("UNAUTHENTICATED NO_KEY"));
  EXPECT_THAT(Status(address, bob.file).output, HasSubstr("UNAUTHENTICATED NO_KEY"));
  EXPECT_THAT(Status(address, alice.file).output, Not(HasSubstr("NO_KEY")));
  const std::string admin = After(server->Output(), "jobs and administration on ");
  const Ran plan = RunProgram({Binary("switchyard"), "plan", "--server=" + admin, "--api_key_file=" + alice.file});
  EXPECT_THAT(plan.output, HasSubstr("PERMISSION_DENIED WRONG_ROLE"));
  const std::string http = After(server->Output(), "HTTP on http://");
  const auto get = [&](const std::string& path, const std::string& key) {
    return HttpCall(http, "GET", path, "",
                    key.empty() ? std::vector<std::string>() : std::vector{"Authorization: Bearer " + key});
  };
  EXPECT_EQ(get("/health", "").status, 200);
  EXPECT_EQ(get("/ready", "").status, 503) << "no worker has joined";
  EXPECT_EQ(get("/v1/models", "").status, 401);
  EXPECT_THAT(get("/v1/models", "").json()["error"]["message"].get<std::string>(),
              HasSubstr("header `Authorization: Bearer KEY`"));
  EXPECT_EQ(get("/v1/models", bob.key).json()["error"]["code"], "invalid_api_key");
  EXPECT_EQ(get("/v1/models", alice.key).status, 200);
  EXPECT_EQ(get("/metrics", alice.key).status, 403);
  EXPECT_EQ(get("/metrics", root.key).status, 200);
  EXPECT_EQ(HttpCall(http, "POST", "/v1/completions", R"({"prompt":"a"})").status, 401);

  Private("keys", absl::StrCat(root.line, "\n", bob.line));
  server->Signal(SIGHUP);
  ASSERT_TRUE(server->WaitForOutput("keys: 2 keys", kSoon)) << server->Output();
  EXPECT_THAT(Status(address, alice.file).output, HasSubstr("UNAUTHENTICATED NO_KEY"));
  EXPECT_THAT(Status(address, bob.file).output, Not(HasSubstr("NO_KEY")));

  Private("keys", absl::StrCat(alice.line, "\n", bob.key));
  server->Signal(SIGHUP);
  ASSERT_TRUE(server->WaitForOutput("the old API keys stay: " + keys + ":2: must be NAME", kSoon)) << server->Output();
  EXPECT_THAT(Status(address, bob.file).output, Not(HasSubstr("NO_KEY")));

  const std::string metrics = After(server->Output(), "metrics on http://");
  EXPECT_THAT(Scrape(metrics.substr(0, metrics.find('/'))), HasSubstr("switchyard_calls_refused_total{"));
  for (const Key& key : {alice, root, bob}) EXPECT_THAT(server->Output(), Not(HasSubstr(key.key)));
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(kSoon).value_or(-1), 0) << server->Output();
}

TEST_F(KeysTest, AFileThatOthersMayReadIsNoStart) {
  const std::string keys = Private("keys", Make("alice", "user").line);
  ASSERT_EQ(chmod(keys.c_str(), 0644), 0);
  const Ran server = RunProgram(ServerArgs(keys));
  EXPECT_EQ(server.code, 2);
  EXPECT_THAT(server.output, HasSubstr("others than its owner may use it (mode 0644)"));
}

}  // namespace
}  // namespace switchyard
