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
  };
}

}  // namespace switchyard
