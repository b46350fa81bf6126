// Waits until a server's model can answer.
#pragma once

#include <chrono>

#include "clients/cpp/client.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "scheduler/base/check.h"

namespace switchyard::examples {

// Blocks until the health service, which sends every change of state, says that the model can answer.  Ends the program
// if the call fails, or after five minutes.
inline void AwaitReady(const client::Client& client) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service("readiness");
  const auto health = grpc::health::v1::Health::NewStub(client.channel());
  const auto states = health->Watch(&context, request);
  grpc::health::v1::HealthCheckResponse state;
  do {
    SY_CHECK(states->Read(&state));
  } while (state.status() != grpc::health::v1::HealthCheckResponse::SERVING);
  context.TryCancel();
  (void)states->Finish();  // cancelled, as there is nothing more to wait for
}

}  // namespace switchyard::examples
