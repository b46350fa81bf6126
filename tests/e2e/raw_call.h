// A gRPC call with bytes instead of messages: what a broken or hostile client may send.
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
// Sends `bytes` as the one message of a call of `method` ("/package.Service/Method") and reads to the end.
RawAnswer RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, const std::string& bytes,
                  absl::Duration timeout);

}  // namespace switchyard
