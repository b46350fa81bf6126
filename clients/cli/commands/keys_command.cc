// switchyard keys: makes API keys for a server with --api_keys_file.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "clients/cli/command.h"
#include "proto/support/api_key.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::cli {
namespace {

constexpr absl::string_view kKeyRoles[] = {"user", "trainer", "admin"};  // those of server/keys/roles.h
constexpr size_t kMostKeyNameBytes = 64;
constexpr char kKeyNameBytes[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

struct NewKeyFlags {
  std::string name, role;
  int64_t requests_per_minute = 0, tokens_per_minute = 0, disk_gib = 0;
};

absl::StatusOr<int> MakeKey(Console& console, const NewKeyFlags& flags) {
  if (flags.name.empty() || flags.name.size() > kMostKeyNameBytes ||
      flags.name.find_first_not_of(kKeyNameBytes) != std::string::npos) {
    return BadInput(absl::StrCat("--name must be 1 to ", kMostKeyNameBytes, " letters, digits, or any of . _ -"));
  }
  if (std::find(std::begin(kKeyRoles), std::end(kKeyRoles), flags.role) == std::end(kKeyRoles)) {
    return BadInput(absl::StrCat("--role=", Quote(flags.role), " must be user, trainer or admin"));
  }
  const std::string key = rpc::DrawApiKey();
  std::string line =
      absl::StrCat(flags.name, " ", flags.role, " sha256:", absl::BytesToHexString(rpc::DigestOfKey(key)));
  if (flags.requests_per_minute > 0) absl::StrAppend(&line, " requests_per_minute=", flags.requests_per_minute);
  if (flags.tokens_per_minute > 0) absl::StrAppend(&line, " tokens_per_minute=", flags.tokens_per_minute);
  if (flags.disk_gib > 0) absl::StrAppend(&line, " disk_gib=", flags.disk_gib);
  console.err << "The key is shown only now; the line belongs into the server's --api_keys_file (then: kill -HUP).\n";
  console.out << "key:  " << key << "\nline: " << line << std::endl;
  return kExitOk;
}

}  // namespace

void AddKeysCommand(Command* app) {
  Command* keys = app->AddCommand("keys", "make the keys that a server with --api_keys_file asks for");
  Command* command = keys->AddCommand("new", "make a key, and the line by which the server knows it; asks no server");
  auto flags = std::make_shared<NewKeyFlags>();
  command->flags()->BeginGroup("Key");
  command->flags()->Add("name=NAME", &flags->name, "whose key it is: letters, digits, or any of . _ -").Required();
  command->flags()
      ->Add("role=ROLE", &flags->role,
            "user: generates text; trainer: also trains jobs of its own; admin: may do everything")
      .Required();
  command->flags()
      ->Add("requests_per_minute=N", &flags->requests_per_minute, "most Generate calls a minute; 0 = no limit")
      .Range(0, int64_t{1} << 50);
  command->flags()
      ->Add("tokens_per_minute=N", &flags->tokens_per_minute,
            "most tokens a minute, of prompts and answers together; 0 = no limit")
      .Range(0, int64_t{1} << 50);
  command->flags()
      ->Add("disk_gib=N", &flags->disk_gib, "most GiB of its training jobs' files; 0 = no limit")
      .Range(0, int64_t{1} << 30);
  command->SetFooter("Example: switchyard keys new --name=alice --role=user --tokens_per_minute=100000");
  command->SetRun([flags](Console& console) { return MakeKey(console, *flags); });
}

}  // namespace switchyard::cli
