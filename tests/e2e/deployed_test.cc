// The server as something else than a person starts it: flags from a file and from the environment, and systemd that
// waits for it.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
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
using testing::StartsWith;

// Sets a variable for the programs that the test starts.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

// The socket on which systemd would listen.
class NotifySocket {
 public:
  NotifySocket() : name_(absl::StrCat("@switchyard-deployed-test-", getpid())) {
    fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    name_.copy(address.sun_path, sizeof(address.sun_path));
    address.sun_path[0] = 0;
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), length), 0);
    constexpr timeval kLimit = {.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kLimit, sizeof(kLimit));
  }
  ~NotifySocket() { close(fd_); }

  const std::string& name() const { return name_; }
  // The next message; "" after the limit.
  std::string Next() {
    char text[1024];
    const ssize_t size = recv(fd_, text, sizeof(text), 0);
    return std::string(text, size > 0 ? static_cast<size_t>(size) : 0);
  }

 private:
  std::string name_;
  int fd_ = -1;
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

TEST(DeployedTest, SystemdLearnsWhenItServesAndWhenItStops) {
  NotifySocket socket;
  const Variable variable("NOTIFY_SOCKET", socket.name());
  const std::unique_ptr<TestServer> server = TestServer::Start({});
  ASSERT_NE(server, nullptr);
  EXPECT_THAT(socket.Next(), StartsWith("STATUS=not serving"));
  EXPECT_EQ(socket.Next(), absl::StrCat("READY=1\nSTATUS=serving demo-model on ", server->address()));
  // `systemctl reload`, also where there is nothing to read again.
  server->process().Signal(SIGHUP);
  EXPECT_TRUE(server->client().GetModelInfo().ok());
  server->process().Signal(SIGTERM);
  EXPECT_EQ(socket.Next(), "STOPPING=1\nSTATUS=ending running requests");
  EXPECT_EQ(server->process().Wait(absl::Seconds(60)), 0) << "SIGHUP would be 129";
}

}  // namespace
}  // namespace switchyard
