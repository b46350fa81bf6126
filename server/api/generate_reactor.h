// One Generate call: raw request → front pool (parse, render, tokenize) → engine → token stream → messages.
//
// gRPC calls OnReadDone, OnWriteDone, OnCancel and OnDone; the front pool calls Prepare; the engine's thread calls
// Pump.  At most one write is under way; Finish is called once.  The object deletes itself in OnDone, which waits until
// Prepare is over.  A call ends when its request does not come within request_message_timeout (DEADLINE_EXCEEDED), or a
// second message comes (INVALID_ARGUMENT).  A client that does not read gets SLOW_READER after slow_client_timeout; if
// it does not read that either, its stream is reset, so that OnDone comes in bounded time.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/api/generation.h"
#include "server/api/request_context.h"

namespace switchyard::server {

class GenerateReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                              private OpenCalls::Call {
 public:
  // `request_context` is borrowed and outlives the gRPC server.
  GenerateReactor(RequestContext* request_context, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  GenerateReactor(RequestContext* request_context, grpc::CallbackServerContext* context,
                  const absl::StatusOr<Caller>& caller);
  // State of the request.  In kPreparing, Prepare runs or waits in the pool; the object outlives that.
  enum class Stage { kAwaited, kPreparing, kDone };

  void CheckTime(absl::Time now) override;
  // Returns when the client, or its request, is overdue.
  absl::Time NextCheck() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Moves from kAwaited to `next`; returns false in any other stage.
  bool TakeRequest(Stage next);
  // Ends a call that is under way, and its work, for what its client did.
  void End(const absl::Status& status);
  void Prepare();
  void Refuse(const absl::Status& status);
  // Starts the next write or finishes the call, if neither is under way.
  void Pump();
  void FinishOnce(const absl::Status& status);

  RequestContext* const request_context_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<ObservedRequest> observed_;  // shared: with the generation and the engine; or null
  Generation generation_;
  grpc::ByteBuffer incoming_;  // being read
  grpc::ByteBuffer request_;

  absl::Mutex mu_;
  Stage stage_ ABSL_GUARDED_BY(mu_) = Stage::kAwaited;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool reset_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time since_ ABSL_GUARDED_BY(mu_);  // when the current write, or the end, began
  grpc::ByteBuffer writing_buffer_;
};

}  // namespace switchyard::server
