#include "scheduler/base/join_token.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace switchyard {
namespace {

constexpr size_t kMaxTokenBytes = 1000;

}  // namespace

absl::StatusOr<std::string> ReadJoinToken(const std::string& path, size_t min_bytes) {
  if (path.empty()) return std::string();
  const auto wrong = [&path](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat("--join_token_file=", path, ": ", problem));
  };
  std::FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return wrong(absl::StrCat("cannot be read: ", std::strerror(errno)));
  char buffer[kMaxTokenBytes + 2];
  const size_t length = std::fread(buffer, 1, sizeof(buffer), file);
  const bool broken = std::ferror(file) != 0;
  std::fclose(file);
  if (broken) return wrong("cannot be read");
  std::string token(buffer, length);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < min_bytes) return wrong(absl::StrCat("at least ", min_bytes, " bytes, has ", token.size()));
  if (token.size() > kMaxTokenBytes) return wrong(absl::StrCat("at most ", kMaxTokenBytes, " bytes, has more"));
  return token;
}

}  // namespace switchyard
