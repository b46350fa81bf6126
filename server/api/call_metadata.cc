#include "server/api/call_metadata.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"

namespace switchyard::server {
namespace {

constexpr size_t kBytesOfAnEntry = 32;
constexpr absl::string_view kOfAConnection[] = {"connection", "keep-alive", "proxy-connection", "transfer-encoding",
                                                "upgrade"};

bool IsName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) || absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
           c == '-' || c == '_' || c == '.';
  });
}
// gRPC has decoded values of names that end in -bin.
bool IsValue(absl::string_view name, absl::string_view value) {
  return absl::EndsWith(name, "-bin") || std::all_of(value.begin(), value.end(), [](char c) {
           return c == '\t' || absl::ascii_isprint(static_cast<unsigned char>(c));
         });
}

absl::Status BadMetadata(absl::string_view problem, absl::string_view name) {
  return rpc::BadField("metadata", absl::StrCat(Quote(name), " ", problem), "", name.substr(0, 100));
}

}  // namespace

absl::Status CheckMetadata(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  size_t bytes = 0;
  for (const auto& [key, text] : metadata) {
    const absl::string_view name(key.data(), key.size()), value(text.data(), text.size());
    bytes += kBytesOfAnEntry + name.size() + value.size();
    if (bytes > kMostMetadataBytes) {
      return rpc::MakeError(absl::StatusCode::kResourceExhausted, v1::BAD_FIELD,
                            absl::StrCat("metadata: more than ", kMostMetadataBytes, " bytes"),
                            {{"field", "metadata"}, {"limit", absl::StrCat(kMostMetadataBytes)}});
    }
    if (!IsName(name)) return BadMetadata("is no name of a header", name);
    if (!IsValue(name, value)) return BadMetadata("has a value with bytes that no header may have", name);
    if (std::find(std::begin(kOfAConnection), std::end(kOfAConnection), name) != std::end(kOfAConnection))
      return BadMetadata("is a header of HTTP/1", name);
  }
  if (metadata.count("content-length") > 1) return BadMetadata("is there twice", "content-length");
  return absl::OkStatus();
}

}  // namespace switchyard::server
