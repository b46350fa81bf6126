// Starts that would leave a door open, and secrets in the wrong places.
#include <sys/stat.h>

#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/security/attempts.h"
#include "tests/server/keys/test_keys.h"

namespace switchyard {
namespace {

constexpr char kModelFlag[] = "--model=deploy/demo-model";

std::function<std::string(AttackedServers&)> Server(std::vector<std::string> flags) {
  return [flags = std::move(flags)](AttackedServers&) {
    std::vector<std::string> args = {Binary("switchyard-server"), kModelFlag, "--port=0", "--metrics_port=0"};
    args.insert(args.end(), flags.begin(), flags.end());
    return AfterStart(args);
  };
}
std::function<std::string(AttackedServers&)> Worker(std::vector<std::string> flags) {
  return [flags = std::move(flags)](AttackedServers&) {
    std::vector<std::string> args = {Binary("switchyard-worker"), kModelFlag};
    args.insert(args.end(), flags.begin(), flags.end());
    return AfterStart(args);
  };
}
// A server with that keys file.
std::function<std::string(AttackedServers&)> Keys(std::string text, mode_t mode) {
  return [=](AttackedServers& servers) {
    const std::string path = servers.folder() + "/other-keys";
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    std::string answer = Server({"--api_keys_file=" + path})(servers);
    if (absl::StrContains(answer, "secret")) answer = "the output shows the file's text";
    unlink(path.c_str());
    return answer;
  };
}
// A server, or a worker, with that token file.
std::function<std::string(AttackedServers&)> Token(const char* program, std::string text, mode_t mode) {
  return [=](AttackedServers& servers) {
    const std::string path = servers.folder() + "/other-token";
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    std::string answer = AfterStart({Binary(program), kModelFlag, "--join_token_file=" + path});
    if (absl::StrContains(answer, text)) answer = "the output shows the token";
    unlink(path.c_str());
    return answer;
  };
}
// The command line with a key in a file that others may read.
std::string ClientWithAnOpenKey(AttackedServers& servers) {
  const std::string path = servers.folder() + "/open-key";
  std::ofstream(path) << "key-alice\n";
  chmod(path.c_str(), 0644);
  return AfterStart(
      {Binary("switchyard"), "status", "--server=" + servers.open()->address(), "--api_key_file=" + path});
}

// What any process of this machine may read of the server and its workers.
std::string SecretsInArguments(AttackedServers& servers) {
  std::vector<pid_t> pids = servers.open()->WorkerPids();
  pids.push_back(servers.open()->process().pid());
  for (const pid_t pid : pids) {
    std::ifstream in(absl::StrCat("/proc/", pid, "/cmdline"));
    const std::string line((std::istreambuf_iterator<char>(in)), {});
    if (line.empty()) return "no command line";
    if (absl::StrContains(line, AttackedServers::kJoinToken)) return "a token in the command line";
    std::ifstream environment_in(absl::StrCat("/proc/", pid, "/environ"));
    const std::string environment((std::istreambuf_iterator<char>(environment_in)), {});
    if (absl::StrContains(environment, AttackedServers::kJoinToken)) return "a token in the environment";
  }
  return "no secret in arguments or environment";
}
std::string SecretsInTheLog(AttackedServers& servers) {
  const std::string log = servers.open()->process().Output();
  if (!absl::StrContains(log, "ready: ")) return "no log";
  return absl::StrContains(log, AttackedServers::kJoinToken) ? "the log has the join token" : "no token in the log";
}

}  // namespace

std::vector<Attempt> StartAttempts() {
  const std::string line = server::KeyLine("alice", "user");
  return {
      {"PlaintextOnEveryAddress", "^exit 2: .*--host=0.0.0.0: .*--insecure", Server({"--host=0.0.0.0"})},
      {"PlaintextOnEveryAddressOfIpv6", "^exit 2: .*--insecure", Server({"--host=::"})},
      {"MetricsOnEveryAddress", "^exit 2: .*--insecure", Server({"--metrics_host=0.0.0.0"})},
      {"WorkersFromElsewhereWithoutAToken", "^exit 2: .*join_token_file",
       Server({"--worker_host=0.0.0.0", "--insecure", "--workers=2"})},
      {"AShortToken", "^exit 2: .*at least 16 bytes", Token("switchyard-server", "short-one", 0600)},
      {"ATokenThatAllMayRead", "^exit 2: .*others than its owner may use it",
       Token("switchyard-server", AttackedServers::kJoinToken, 0644)},
      {"AWorkersTokenThatAllMayRead", "^exit 2: .*others than its owner may use it",
       Token("switchyard-worker", AttackedServers::kJoinToken, 0644)},
      {"TheTokenAsAnArgument", "^exit 2: .*unknown flag --join_token", Server({"--join_token=secret"})},
      {"AKeyAsAnArgument", "^exit 2: .*unknown flag --api_key", Server({"--api_key=secret"})},
      {"AWorkersTokenAsAnArgument", "^exit 2: .*unknown flag --join_token",
       Worker({"--server=127.0.0.1:1", "--join_token=secret"})},
      {"AWorkerInPlaintextElsewhere", "^exit 2: .*--insecure", Worker({"--server=192.0.2.1:1"})},
      {"AWorkerOnEveryInterface", "^exit 2: .*loopback nor private",
       Worker({"--server=127.0.0.1:1", "--address=0.0.0.0"})},
      {"KeysThatAllMayRead", "^exit 2: .*others than its owner may use it", Keys(line, 0644)},
      {"KeysThatTheGroupMayRead", "^exit 2: .*others than its owner may use it", Keys(line, 0640)},
      {"KeysThatAllMayWrite", "^exit 2: .*others than its owner may use it", Keys(line, 0602)},
      {"KeysInClearText", "^exit 2: .*other-keys:1: ", Keys("alice user secret\n", 0600)},
      {"KeysWithAnUnknownRole", "^exit 2: .*other-keys:1: ", Keys("alice secret sha256:00\n", 0600)},
      {"KeysFromADevice", "^exit 2: .*/dev/zero", Server({"--api_keys_file=/dev/zero"})},
      {"KeysFromAFolder", "^exit 2: .*deploy: ", Server({"--api_keys_file=deploy"})},
      {"NoKeysFile", "^exit 2: .*/nonexistent", Server({"--api_keys_file=/nonexistent"})},
      {"AClientsKeyThatAllMayRead", "^exit [12]: .*others than its owner", ClientWithAnOpenKey},
      {"AClientsKeyAsAnArgument", "^exit [12]: .*unknown flag --api_key",
       [](AttackedServers& servers) {
         return AfterStart(
             {Binary("switchyard"), "status", "--server=" + servers.open()->address(), "--api_key=secret"});
       }},
      {"AModelByUrl", "^exit 2: .*no such directory", Server({"--model=https://example.org/model"})},
      {"SecretsInArguments", "^no secret", SecretsInArguments},
      {"SecretsInTheLog", "^no token", SecretsInTheLog},
  };
}

}  // namespace switchyard
