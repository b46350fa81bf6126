#include "proto/support/join_token.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/support/secret_file.h"

namespace switchyard::rpc {
namespace {

constexpr size_t kMaxTokenBytes = 1000;

}  // namespace

absl::StatusOr<std::string> ReadJoinToken(const std::string& path, size_t min_bytes) {
  if (path.empty()) return std::string();
  const auto wrong = [](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat("--join_token_file=", problem));
  };
  absl::StatusOr<std::string> token = ReadSecretFile(path, kMaxTokenBytes + 2);  // with a line's end
  if (!token.ok()) return wrong(token.status().message());
  while (!token->empty() && (token->back() == '\n' || token->back() == '\r')) token->pop_back();
  if (token->size() > kMaxTokenBytes)
    return wrong(absl::StrCat(path, ": at most ", kMaxTokenBytes, " bytes, has ", token->size()));
  if (token->size() < min_bytes)
    return wrong(absl::StrCat(path, ": at least ", min_bytes, " bytes, has ", token->size()));
  return token;
}

}  // namespace switchyard::rpc
