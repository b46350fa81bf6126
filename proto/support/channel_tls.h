// TLS at the client's end of a gRPC channel, from PEM files: for clients of a server and for the workers' links.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"

namespace switchyard::rpc {

struct TlsFiles {
  bool on = false;        // TLS even if no file is named: the server's certificate is checked by the system's CAs
  std::string ca;         // certificates of the CAs that may have signed the server's; empty: the system's
  std::string cert, key;  // this side's own certificate, with those that lead to its CA, and its key; empty: none

  bool used() const { return on || !ca.empty() || !cert.empty() || !key.empty(); }
};

// Reads the files, and returns what a new channel needs; plaintext if nothing is set.  A channel keeps what it was made
// with, so files that have changed count for the next one.  Errors name the file: INVALID_ARGUMENT if one cannot be
// read or has no certificate or key, if the key is another's than the certificate's or others than its owner may read
// it, or if one of both is missing.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const TlsFiles& files);

}  // namespace switchyard::rpc
