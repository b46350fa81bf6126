// The parts of the server that RPCs use: engine, text processor, thread pools, limits.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/status_macros.h"
#include "server/admission/client_shares.h"
#include "server/admission/front_pool.h"
#include "server/admission/open_calls.h"
#include "server/api/convert.h"
#include "server/config.h"
#include "server/engine/engine_loop.h"
#include "server/keys/key_ring.h"
#include "server/keys/quotas.h"
#include "server/metrics/metrics.h"
#include "server/observe/request_observer.h"

namespace switchyard::server {

struct RequestContext {
  const ServerConfig* config = nullptr;
  const text::TextProcessor* text = nullptr;
  ConstraintCompiler* constraints = nullptr;
  EngineLoop* engine = nullptr;
  FrontPool* pool = nullptr;
  FrontPool* file_pool = nullptr;  // for calls that read files or ask a program, and may wait for a disk
  ServerMetrics* metrics = nullptr;
  int64_t start_time = 0;               // seconds since 1970
  const KeyRing* keys = nullptr;        // null: calls need no key (no --api_keys_file)
  RequestObserver* observer = nullptr;  // null: nobody observes requests (no --request_log, no --otlp_endpoint)
  KeyQuotas quotas;
  std::atomic<int> open_streams{0};
  ClientShares streams_of;  // open Generate calls of each client
  OpenCalls open_calls;
  // Whether the worker's connection has bytes that are not read yet; empty before the server listens.
  std::function<bool(const fleet::WorkerInfo&)> has_unread;

  // Returns who makes `context`'s call of `method` (a name of keys/roles.h).  Errors are those of CheckMetadata and of
  // KeyRing::Admit, which are counted.  Every handler asks this first.
  absl::StatusOr<Caller> Admit(const grpc::ServerContextBase& context, absl::string_view method) const;

  // Begins to observe a Generate call of `context`'s, or null.  `caller`: who makes it, or why nobody may.
  std::shared_ptr<ObservedRequest> Observe(const grpc::ServerContextBase& context, const absl::StatusOr<Caller>& caller,
                                           absl::Time arrival) const;

  // Returns the client whose turn at the front pool the call uses: its key, or without keys FrontClientOfPeer.
  static std::string FrontClient(const Caller& caller, const grpc::ServerContextBase& context);

  // As Admit, by the values of `authorization`, which the call has in `place`.
  absl::StatusOr<Caller> AdmitKey(absl::Span<const absl::string_view> authorization, absl::string_view method,
                                  KeyPlace place) const;

  // Arguments for convert.h, for the call of `context`.  FAILED_PRECONDITION while the model is not known yet,
  // INVALID_ARGUMENT when the client's deadline is longer than the server allows.  *model keeps the arguments' model
  // alive.
  absl::StatusOr<ConvertArgs> Args(const grpc::ServerContextBase& context,
                                   std::shared_ptr<const ServedModel>* model) const;
  // Likewise, for a call whose client waits for so long; without a limit the server's default holds.
  absl::StatusOr<ConvertArgs> Args(std::optional<absl::Duration> limit,
                                   std::shared_ptr<const ServedModel>* model) const;

  // Parses the request of `context`'s call, which must name the served model.  Errors are those of ParseRaw, Args and
  // CheckModelName.
  template <class Request>
  absl::Status Read(const grpc::ServerContextBase& context, const grpc::ByteBuffer& bytes, Request* request,
                    std::shared_ptr<const ServedModel>* model) const {
    RETURN_IF_ERROR(rpc::ParseRaw(bytes, request));
    RETURN_IF_ERROR(Args(context, model).status());
    return CheckModelName(request->model(), **model);
  }
};

// Converts the error with which `context`'s call ends; adds the trailer that says when to retry.
grpc::Status OnTheWire(const absl::Status& status, absl::string_view request_id, grpc::ServerContextBase* context);

}  // namespace switchyard::server
