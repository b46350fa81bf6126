// gRPC's reflection, by which clients such as grpcurl learn the services of a port and their messages: v1, and v1alpha,
// whose messages have the same bytes.  (The library's own has v1alpha alone and uses a thread for each open call.)
//
// Symbols, files and extensions are those of all messages that this program is linked with; services are the port's.
// A call holds no thread; it answers one request after the other, each when the answer before it was sent.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace switchyard::server {

// Answers requests of one port.  Immutable, so thread-safe.
class ReflectionAnswers {
 public:
  static constexpr size_t kMostNameBytes = 1024;

  // `services`: full names of the port's, without those of reflection, which are added.
  explicit ReflectionAnswers(std::vector<std::string> services);

  // What there is not is an ErrorResponse with NOT_FOUND, an empty request one with INVALID_ARGUMENT.
  grpc::reflection::v1::ServerReflectionResponse Answer(
      const grpc::reflection::v1::ServerReflectionRequest& request) const;

 private:
  std::vector<std::string> services_;  // sorted
};

// Serves one call with `answers`, which it borrows.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* NewReflectionCall(const ReflectionAnswers* answers);

// The service of one version.  `answers` is borrowed and outlives the server.
template <class Version>
class ReflectionService final
    : public Version::template WithRawCallbackMethod_ServerReflectionInfo<typename Version::Service> {
 public:
  explicit ReflectionService(const ReflectionAnswers* answers) : answers_(answers) {}
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServerReflectionInfo(
      grpc::CallbackServerContext*) override {
    return NewReflectionCall(answers_);
  }

 private:
  const ReflectionAnswers* const answers_;
};
using ReflectionV1 = ReflectionService<grpc::reflection::v1::ServerReflection>;
using ReflectionV1Alpha = ReflectionService<grpc::reflection::v1alpha::ServerReflection>;

}  // namespace switchyard::server
