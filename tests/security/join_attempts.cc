// Strangers who want to be workers, or to read what workers tell each other.
#include <dirent.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/link/link_protocol.h"
#include "switchyard/v1/worker.pb.h"
#include "tests/e2e/http2_frames.h"
#include "tests/e2e/raw_connection.h"
#include "tests/security/attempts.h"

namespace switchyard {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

std::string Registration(const std::string& token, int local_index = -1, const std::string& role = "",
                         int version = link::kProtocolVersion) {
  v1::LinkRequest hello;
  v1::Register* const out = hello.mutable_register_();
  out->set_protocol_version(version);
  out->set_incarnation("stranger");
  out->set_join_token(token);
  out->set_local_index(local_index);
  out->set_role(role);
  out->mutable_model()->set_vocab_size(6144);
  out->mutable_model()->set_context(1024);
  return hello.SerializeAsString();
}

std::function<std::string(AttackedServers&)> Link(std::string bytes) {
  return [=](AttackedServers& servers) {
    const RawAnswer answer =
        RawCall(servers.open()->worker_channel(), kLinkMethod, bytes, kPatience, {.half_close = false});
    return absl::StrCat(answer.messages.empty() ? "" : "let in, then ", InWords(answer.status));
  };
}
std::function<std::string(AttackedServers&)> Store(const char* method, std::string bytes) {
  return [=](AttackedServers& servers) {
    return InWords(RawCall(servers.open()->worker_channel(), absl::StrCat("/switchyard.v1.WorkerService/", method),
                           bytes, kPatience)
                       .status);
  };
}
std::string SetOf(const std::string& token, size_t value_bytes = 4) {
  v1::StoreSetRequest request;
  request.set_store_token(token);
  request.set_key("rank/0");
  request.set_value(std::string(value_bytes, 'x'));
  return request.SerializeAsString();
}
std::string GetOf(const std::string& token) {
  v1::StoreGetRequest request;
  request.set_store_token(token);
  request.add_keys("rank/0");
  request.set_timeout_ms(100);
  return request.SerializeAsString();
}

// Ports of IPv4 on which the process listens.
std::set<int> ListeningPorts(pid_t pid) {
  std::set<std::string> sockets;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (absl::StartsWith(target, "socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::set<int> ports;
  std::ifstream in(absl::StrCat("/proc/", pid, "/net/tcp"));
  std::string line;
  for (std::getline(in, line); std::getline(in, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, word, inode;
    words >> number >> local >> remote >> state;
    for (int i = 0; i < 6 && words >> word; ++i) inode = word;
    if (state == "0A" && sockets.count(inode) > 0)
      ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

// Connects to whatever the workers of the keyed server (two that train, one that serves) and of the open one listen on,
// but their metrics pages, and says `bytes`.
std::function<std::string(AttackedServers&)> OnTheDataPlane(std::string bytes) {
  return [=](AttackedServers& servers) {
    if (servers.keyed() == nullptr) return std::string("no server");
    std::vector<pid_t> pids = servers.training()->TrainWorkerPids();
    const pid_t own = servers.open()->WorkerPids().at(0);
    pids.push_back(own);
    int ports = 0, ended = 0;
    std::string seen;
    for (const pid_t pid : pids) {
      for (const int port : ListeningPorts(pid)) {
        const std::string address = absl::StrCat("127.0.0.1:", port);
        if (absl::StartsWith(AfterHttp(address, "GET /metrics HTTP/1.0\r\n\r\n", absl::Seconds(2)), "HTTP")) continue;
        ++ports;
        RawConnection connection(address);
        connection.Send(bytes, absl::Seconds(2));
        ended += connection.AwaitEnd(absl::Seconds(8)) ? 1 : 0;
        seen += connection.seen().bytes;
      }
    }
    if (ended < ports) return absl::StrCat(ports - ended, " of ", ports, " connections stay open");
    return absl::StrCat("all ", ports, " ended, ", seen.size(), " bytes came");
  };
}

// A first link message of 4 MB, of which nothing is a registration.
std::string LargeFirstMessage() {
  v1::LinkRequest large;
  for (int i = 0; i < 2000000; ++i) large.mutable_step_result()->add_items();
  return large.SerializeAsString();
}

}  // namespace

std::vector<Attempt> JoinAttempts() {
  static constexpr char kNoToken[] = "^UNAUTHENTICATED .*the join token is not this server's";
  static constexpr char kNoStore[] = "^(UNAUTHENTICATED|PERMISSION_DENIED|ABORTED|NOT_FOUND|FAILED_PRECONDITION) ";
  v1::LinkRequest beat;
  beat.mutable_heartbeat();
  const std::string token = AttackedServers::kJoinToken;
  return {
      {"JoinWithoutAToken", kNoToken, Link(Registration(""))},
      {"JoinWithAWrongToken", kNoToken, Link(Registration("a token of some other kind"))},
      {"JoinWithAPartOfTheToken", kNoToken, Link(Registration(token.substr(0, token.size() - 1)))},
      {"JoinWithMoreThanTheToken", kNoToken, Link(Registration(token + "\n"))},
      {"JoinAsALocalWorkerWithoutAToken", kNoToken, Link(Registration("", 0))},
      {"JoinAsALocalWorkerWithTheSharedToken", "FAILED_PRECONDITION .*weights hash", Link(Registration(token, 0))},
      {"JoinWithOtherWeights", "FAILED_PRECONDITION .*weights hash", Link(Registration(token))},
      {"JoinWithAnotherProtocol", "^FAILED_PRECONDITION .*protocol 1,", Link(Registration(token, -1, "", 1))},
      {"JoinWithAnUnknownRole", "^INVALID_ARGUMENT .*must be empty, train or both", Link(Registration(token, -1, "x"))},
      {"JoinToTrainWhereNothingTrains", "^FAILED_PRECONDITION", Link(Registration(token, -1, "train"))},
      {"ALinkThatBeginsOtherwise", "^INVALID_ARGUMENT .*begins with its registration", Link(beat.SerializeAsString())},
      {"ALinkThatBeginsWithNothing", "^INVALID_ARGUMENT .*begins with its registration", Link("")},
      {"ALinkOfJunk", "^INVALID_ARGUMENT", Link(std::string(100, '\xff'))},
      {"AFirstMessageOf4Megabytes", "^INVALID_ARGUMENT .*limit 65536", Link(LargeFirstMessage())},
      {"StoreSetWithoutAToken", kNoStore, Store("StoreSet", SetOf(""))},
      {"StoreSetWithAWrongToken", kNoStore, Store("StoreSet", SetOf("0123456789abcdef"))},
      {"StoreSetWithTheJoinToken", kNoStore, Store("StoreSet", SetOf(token))},
      {"StoreSetOf3Megabytes", "^INVALID_ARGUMENT .*limit", Store("StoreSet", SetOf(token, 3 << 20))},
      {"StoreSetOfJunk", "^INVALID_ARGUMENT", Store("StoreSet", std::string(100, '\xff'))},
      {"StoreGetWithoutAToken", kNoStore, Store("StoreGet", GetOf(""))},
      {"StoreGetWithAWrongToken", kNoStore, Store("StoreGet", GetOf("0123456789abcdef"))},
      {"StoreGetOfJunk", "^INVALID_ARGUMENT", Store("StoreGet", std::string(100, '\xff'))},
      {"JoinAtThePortOfUsers", "^UNIMPLEMENTED .*WorkerService is on that of --worker_port",
       [](AttackedServers& servers) {
         return InWords(RawCall(servers.open()->channel(), kLinkMethod, "", kPatience).status);
       }},
      {"DataPlaneSilent", "^all .* ended, 0 bytes", OnTheDataPlane("")},
      {"DataPlaneJunk", "^all .* ended, 0 bytes", OnTheDataPlane(std::string(4096, '\xff'))},
  };
}

}  // namespace switchyard
