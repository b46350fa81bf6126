#include "proto/support/api_key.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::rpc {
namespace {

constexpr size_t kMaxKeyBytes = 1000;

}  // namespace

std::string DrawApiKey() {
  std::string bytes(32, '\0');
  SY_CHECK_EQ(getentropy(bytes.data(), bytes.size()), 0);
  return absl::StrCat("sy-", absl::BytesToHexString(bytes));
}

std::string DigestOfKey(absl::string_view key) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  SY_CHECK_EQ(EVP_Digest(key.data(), key.size(), digest, &size, EVP_sha256(), nullptr), 1);
  SY_CHECK_EQ(size, kKeyDigestBytes);
  return std::string(reinterpret_cast<const char*>(digest), size);
}

absl::Status CheckKeyText(absl::string_view key) {
  if (key.empty()) return absl::InvalidArgumentError("the API key is empty");
  if (key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the API key has ", key.size(), " bytes, limit ", kMaxKeyBytes));
  }
  if (!std::all_of(key.begin(), key.end(), [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); })) {
    return absl::InvalidArgumentError("the API key has characters other than printable ASCII");
  }
  return absl::OkStatus();
}

}  // namespace switchyard::rpc
