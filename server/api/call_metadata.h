// What a call's metadata may be.
//
// gRPC 1.51 takes names and values that HTTP/2 forbids (RFC 9113, 8.2), which a proxy behind or before this server
// might read as other headers, and does not limit the metadata of a client that does not acknowledge its SETTINGS.
#pragma once

#include <cstddef>
#include <map>

#include "absl/status/status.h"
#include "grpcpp/support/string_ref.h"

namespace switchyard::server {

inline constexpr size_t kMostMetadataBytes = size_t{8} << 10;

// RESOURCE_EXHAUSTED: more than kMostMetadataBytes, counted as HTTP/2 does: 32 bytes besides a name and its value.
// INVALID_ARGUMENT: a name or a value that HTTP/2 forbids, a header of a connection, two lengths.
absl::Status CheckMetadata(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

}  // namespace switchyard::server
