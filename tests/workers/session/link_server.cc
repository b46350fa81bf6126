#include "tests/workers/session/link_server.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"

namespace switchyard::worker {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr absl::Duration kLook = absl::Milliseconds(50);

}  // namespace

LinkServer::LinkServer(int port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  SY_CHECK(server_ != nullptr);
}

LinkServer::~LinkServer() {
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  server_->Shutdown(std::chrono::system_clock::now());  // cancels the calls
  server_->Wait();
}

grpc::Status LinkServer::Link(grpc::ServerContext*, Stream* stream) {
  v1::LinkRequest message;
  if (!stream->Read(&message) || !message.has_register_()) return {grpc::StatusCode::INVALID_ARGUMENT, "no register"};
  const int worker = message.register_().local_index();
  v1::LinkResponse registered;
  registered.mutable_registered()->set_heartbeat_ms(100);
  stream->Write(registered);
  do {
    if (message.has_heartbeat()) continue;
    absl::MutexLock lock(&mu_);
    peers_[worker].stream = stream;
    peers_[worker].messages.push_back(message);
  } while (stream->Read(&message));
  absl::MutexLock lock(&mu_);
  peers_[worker].stream = nullptr;
  return grpc::Status::OK;
}

void LinkServer::Send(int worker, const v1::LinkResponse& message) {
  absl::MutexLock lock(&mu_);
  ASSERT_NE(peers_[worker].stream, nullptr) << "worker " << worker;
  peers_[worker].stream->Write(message);
}

v1::LinkRequest LinkServer::Await(int worker, size_t* at, const std::function<bool(const v1::LinkRequest&)>& wanted) {
  const auto next = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    const std::vector<v1::LinkRequest>& messages = peers_[worker].messages;
    size_t i = *at;
    while (i < messages.size() && !wanted(messages[i])) ++i;
    return i;
  };
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return next() < peers_[worker].messages.size(); };
  absl::MutexLock lock(&mu_);
  if (mu_.AwaitWithTimeout(absl::Condition(&there), kPatience)) {
    const size_t found = next();
    *at = found + 1;
    return peers_[worker].messages[found];
  }
  ADD_FAILURE() << "worker " << worker << " has not said it; its messages:";
  for (const v1::LinkRequest& message : peers_[worker].messages) ADD_FAILURE() << message.ShortDebugString();
  return {};
}

std::vector<v1::LinkRequest> LinkServer::Messages(int worker) {
  absl::MutexLock lock(&mu_);
  return peers_[worker].messages;
}

grpc::Status LinkServer::StoreSet(grpc::ServerContext*, const v1::StoreSetRequest* request, v1::StoreSetResponse*) {
  absl::MutexLock lock(&mu_);
  store_[absl::StrCat(request->store_token(), "/", request->key())] = request->value();
  return grpc::Status::OK;
}

grpc::Status LinkServer::StoreGet(grpc::ServerContext* context, const v1::StoreGetRequest* request,
                                  v1::StoreGetResponse* response) {
  const absl::Time end = absl::Now() + absl::Milliseconds(request->timeout_ms());
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    if (closing_) return true;
    for (const std::string& key : request->keys()) {
      if (store_.count(absl::StrCat(request->store_token(), "/", key)) == 0) return false;
    }
    return true;
  };
  absl::MutexLock lock(&mu_);
  while (!mu_.AwaitWithTimeout(absl::Condition(&there), kLook)) {
    if (context->IsCancelled()) return {grpc::StatusCode::CANCELLED, "nobody waits"};
    if (absl::Now() > end) return {grpc::StatusCode::DEADLINE_EXCEEDED, "not there"};
  }
  if (closing_) return {grpc::StatusCode::UNAVAILABLE, "closing"};
  for (const std::string& key : request->keys()) {
    response->add_values(store_[absl::StrCat(request->store_token(), "/", key)]);
  }
  return grpc::Status::OK;
}

}  // namespace switchyard::worker
