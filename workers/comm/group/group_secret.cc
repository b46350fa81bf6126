#include "workers/comm/group/group_secret.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::comm {

Digest DigestUnder(const std::string& secret, absl::string_view label, absl::string_view message) {
  const std::string text = absl::StrCat(label, absl::string_view("\0", 1), message);
  Digest digest;
  unsigned size = 0;
  const auto* const got = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                               reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                               reinterpret_cast<unsigned char*>(digest.data()), &size);
  SY_CHECK(got != nullptr);
  SY_CHECK_EQ(size, digest.size());
  return digest;
}

uint64_t GroupTag(const std::string& secret) {
  const Digest digest = DigestUnder(secret, "switchyard group", "");
  uint64_t tag = 0;
  std::memcpy(&tag, digest.data(), sizeof(tag));
  return tag;
}

Digest LinkKey(const std::string& secret) { return DigestUnder(secret, "switchyard links", ""); }

Digest DrawNonce() {
  Digest nonce;
  SY_CHECK_EQ(getentropy(nonce.data(), nonce.size()), 0);
  return nonce;
}

}  // namespace switchyard::comm
