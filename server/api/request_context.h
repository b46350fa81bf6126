// What every user RPC needs, in one place: the engine, the text room, the front pool, the limits.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "server/admission/client_shares.h"
#include "server/admission/front_pool.h"
#include "server/admission/open_calls.h"
#include "server/admission/reset_guard.h"
#include "server/api/convert.h"
#include "server/config.h"
#include "server/engine/engine_loop.h"
#include "server/metrics/metrics.h"

namespace switchyard::server {

struct RequestContext {
  const ServerConfig* config = nullptr;
  const text::TextProcessor* text = nullptr;
  EngineLoop* engine = nullptr;
  FrontPool* pool = nullptr;
  FrontPool* file_pool = nullptr;  // for calls that read files or ask a program, and may have to wait for a disk
  ServerMetrics* metrics = nullptr;
  std::atomic<int> open_streams{0};
  ClientShares streams_of;  // open Generate calls of each client
  OpenCalls open_calls;
  ResetGuard resets;                                            // of Generate calls
  std::function<void(const std::string& peer)> end_connection;  // that floods
  // Whether something that a worker said was not read yet; empty before the server listens.
  std::function<bool(const fleet::WorkerInfo&)> has_unread;

  // Arguments for convert.h, for a call that came with `context`.  FAILED_PRECONDITION while the model is not known
  // yet, and INVALID_ARGUMENT when the client's deadline is longer than the server allows.  `model` keeps the facts
  // alive.
  absl::StatusOr<ConvertArgs> Args(const grpc::ServerContextBase& context,
                                   std::shared_ptr<const ServedModel>* model) const;
};

// An error as the call of `context` ends with it, the trailer with the advice when to retry included.
grpc::Status OnTheWire(const absl::Status& status, absl::string_view request_id, grpc::ServerContextBase* context);

// Ids and seeds that the server draws for requests without one.
std::string DrawRequestId();
uint64_t DrawSeed();

}  // namespace switchyard::server
