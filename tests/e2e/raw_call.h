// A gRPC call with bytes instead of messages, as a broken or hostile client may send them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"

namespace switchyard {

struct RawAnswer {
  grpc::Status status;
  std::vector<std::string> messages;
  std::multimap<std::string, std::string> trailers;
};
struct RawOptions {
  std::multimap<std::string, std::string> metadata = {};
  int times = 1;           // how often the message is sent
  bool half_close = true;  // ends the client's stream
  bool compress = false;   // by gzip
};
// Sends `bytes` as the one message of a call of `method` ("/package.Service/Method") and reads to the end.
RawAnswer RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& bytes,
                  absl::Duration timeout, const RawOptions& options = {});

}  // namespace switchyard
