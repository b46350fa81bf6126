// The server as something else than a person starts it: flags from a file and from the environment.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

// Sets a variable for the programs that the test starts.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(absl::StrCat(testing::TempDir(), "deployed_test_", getpid(), ".yaml")) {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  std::string flag() const { return absl::StrCat("--config=", path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(DeployedTest, FlagsComeFromTheCommandLineTheEnvironmentAndAFile) {
  const ConfigFile file("served-model-name: from_file\nmax_model_len: 64\ndrain_timeout: 1s\n");
  const Variable length("SWITCHYARD_MAX_MODEL_LEN", "128"), streams("SWITCHYARD_MAX_STREAMS", "0");
  // A flag of workers: those that the server starts get all their flags from it.
  const Variable address("SWITCHYARD_ADDRESS", "192.0.2.1");
  const std::unique_ptr<TestServer> server = TestServer::Start({.flags = {file.flag(), "--max-streams=7"}});
  ASSERT_NE(server, nullptr);
  const absl::StatusOr<v1::GetModelInfoResponse> info = server->client().GetModelInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->model(), "from_file");
  EXPECT_EQ(info->max_model_len(), 128);
  const std::unique_ptr<Process> version = Process::Start({Binary("switchyard-server"), "--version"});
  ASSERT_EQ(version->Wait(absl::Seconds(20)), 0);
  EXPECT_EQ(version->Output(), absl::StrCat("switchyard-server ", info->server_version(), "\n"));
}

TEST(DeployedTest, EveryProblemOfEverySourceIsNamed) {
  const ConfigFile file("model: deploy/demo-model\nmax_num_seq: 3\ntensor-parallel-size: 2\n");
  const Variable port("SWITCHYARD_PORT", "tcp://10.0.0.1:50051");
  const std::unique_ptr<Process> server =
      Process::Start({Binary("switchyard-server"), file.flag(), "--max-model-length=5"});
  ASSERT_EQ(server->Wait(absl::Seconds(20)), 2);
  const std::string said = server->Output();
  for (const std::string& line :
       {std::string("unknown flag --max-model-length; did you mean --max_model_len?"),
        std::string("SWITCHYARD_PORT: Illegal value 'tcp://10.0.0.1:50051' specified for flag 'port'"),
        absl::StrCat(file.path(), ":2: unknown flag --max_num_seq; did you mean --max_num_seqs?"),
        absl::StrCat(file.path(), ":3: unknown flag --tensor-parallel-size; there is no tensor")}) {
    EXPECT_THAT(said, HasSubstr(absl::StrCat("switchyard-server: ", line)));
  }
}

}  // namespace
}  // namespace switchyard
