// Calls without a key, with a wrong one, or with one that may not make them.
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/api_key.h"
#include "server/keys/roles.h"
#include "tests/security/attempts.h"

namespace switchyard {
namespace {

using Metadata = std::multimap<std::string, std::string>;

constexpr absl::Duration kPatience = absl::Seconds(60);

std::string GenerateWith(AttackedServers& servers, Metadata metadata) {
  if (servers.keyed() == nullptr) return "no server";
  return InWords(RawCall(servers.keyed()->client().channel(), kGenerateMethod,
                         TextRequest("The", 2).SerializeAsString(), kPatience, {.metadata = std::move(metadata)})
                     .status);
}
std::function<std::string(AttackedServers&)> With(Metadata metadata) {
  return [metadata = std::move(metadata)](AttackedServers& servers) { return GenerateWith(servers, metadata); };
}
std::function<std::string(AttackedServers&)> As(const char* name, std::string method, std::string bytes = "") {
  return [=](AttackedServers& servers) { return servers.CallAs(name, method, bytes); };
}
// Field 1, a string.
std::string OfId(const std::string& id) {
  return absl::StrCat("\x0a", std::string(1, static_cast<char>(id.size())), id);
}

// Aborts bob's stream as alice, while it runs.
std::string AbortAnothers(AttackedServers& servers) {
  if (servers.keyed() == nullptr) return "no server";
  v1::GenerateRequest request = TextRequest("The", 900);
  request.set_request_id("of-bob");
  const auto stub = v1::InferenceService::NewStub(servers.keyed()->client().channel());
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer key-bob");
  const auto stream = stub->Generate(&context, request);
  v1::GenerateResponse message;
  if (!stream->Read(&message)) return "bob is not served";
  const std::string answer = servers.CallAs("alice", "InferenceService/Abort", OfId("of-bob"));
  int tokens = message.token_ids_size();
  while (stream->Read(&message)) tokens += message.token_ids_size();
  return tokens == 900 && stream->Finish().ok() ? answer : absl::StrCat("bob's stream ended after ", tokens, " tokens");
}

std::string BeyondTheQuota(AttackedServers& servers) {
  const Metadata poor = {{"authorization", "Bearer key-poor"}};
  if (const std::string first = GenerateWith(servers, poor); first != "served") return "the first call: " + first;
  return GenerateWith(servers, poor);
}

// Names of keys may be logged; the keys that the attempts before have shown must not.
std::string KeysInTheLog(AttackedServers& servers) {
  if (servers.keyed() == nullptr) return "no server";
  const std::string log = servers.keyed()->process().Output();
  for (const char* key : {"key-alice", "key-bob", "key-poor", "key-tina", "key-theo", "key-root", "key-nobody"}) {
    if (absl::StrContains(log, key)) return absl::StrCat("the log has ", key);
  }
  return absl::StrContains(log, "ready: ") ? "no key in the log" : "no log";
}

}  // namespace

std::vector<Attempt> KeyAttempts() {
  static constexpr char kRefused[] = "^UNAUTHENTICATED NO_KEY";
  const std::string hash = "sha256:" + absl::BytesToHexString(rpc::DigestOfKey("key-alice"));
  return {
      {"NoKey", kRefused, With({})},
      {"UnknownKey", kRefused, With({{"authorization", "Bearer key-nobody"}})},
      {"TwoKeys", kRefused, With({{"authorization", "Bearer key-alice"}, {"authorization", "Bearer key-bob"}})},
      {"TheSameKeyTwice", kRefused, With({{"authorization", "Bearer key-bob"}, {"authorization", "Bearer key-bob"}})},
      {"TwoKeysInOneValue", kRefused, With({{"authorization", "Bearer key-alice,Bearer key-bob"}})},
      {"BasicScheme", kRefused, With({{"authorization", "Basic a2V5LWFsaWNlOg=="}})},
      {"NoScheme", kRefused, With({{"authorization", "key-alice"}})},
      {"AnotherHeader", kRefused, With({{"x-api-key", "key-alice"}})},
      {"ProxyHeader", kRefused, With({{"proxy-authorization", "Bearer key-alice"}})},
      {"EmptyKey", kRefused, With({{"authorization", "Bearer "}})},
      {"APartOfTheKey", kRefused, With({{"authorization", "Bearer key-alic"}})},
      {"MoreThanTheKey", kRefused, With({{"authorization", "Bearer key-alice "}})},
      {"OtherCase", kRefused, With({{"authorization", "Bearer KEY-ALICE"}})},
      {"TheHashForTheKey", kRefused, With({{"authorization", "Bearer " + hash}})},
      {"TheNameForTheKey", kRefused, With({{"authorization", "Bearer alice"}})},
      {"TheRoleInMetadata", "^PERMISSION_DENIED WRONG_ROLE",
       [](AttackedServers& servers) {
         return InWords(
             RawCall(servers.keyed()->admin_channel(), "/switchyard.v1.AdminService/GetPlan", "", kPatience,
                     {.metadata = {{"authorization", "Bearer key-alice"}, {"role", "admin"}, {"x-role", "admin"}}})
                 .status);
       }},
      {"AbortOfAnothersRequest", "^NOT_FOUND REQUEST_NOT_FOUND", AbortAnothers},
      {"BeyondTheQuota", "^RESOURCE_EXHAUSTED QUOTA", BeyondTheQuota},
      {"Reflection", "^UNIMPLEMENTED",
       [](AttackedServers& servers) {
         if (servers.keyed() == nullptr) return std::string("no server");
         return InWords(RawCall(servers.keyed()->client().channel(),
                                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "", kPatience)
                            .status);
       }},
      {"UnknownMethod", "^UNIMPLEMENTED", As("root", "AdminService/Nonsense")},
      {"KeysInTheLog", "^no key in the log", KeysInTheLog},
  };
}

// Each method without a key, and with a key of each role that may not call it.
std::vector<Attempt> RoleAttempts() {
  std::vector<Attempt> attempts;
  const auto add = [&attempts](const char* who, absl::string_view method, const char* refusal) {
    static std::vector<std::unique_ptr<std::string>> names;  // outlive the table
    const std::string service_and_method(method);
    names.push_back(std::make_unique<std::string>(absl::StrCat(
        service_and_method.substr(service_and_method.find('/') + 1), *who == '\0' ? "WithoutAKey" : "By", who)));
    attempts.push_back({names.back()->c_str(), refusal, As(who, service_and_method)});
  };
  for (const server::MethodRole& row : server::MethodRoles()) {
    add("", row.method, "^UNAUTHENTICATED NO_KEY");
    if (row.least > server::Role::kUser) add("alice", row.method, "^PERMISSION_DENIED WRONG_ROLE");
    if (row.least > server::Role::kTrainer) add("tina", row.method, "^PERMISSION_DENIED WRONG_ROLE");
  }
  return attempts;
}

}  // namespace switchyard
