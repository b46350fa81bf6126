// One Generate call: raw request → front pool (parse, render, tokenize) → engine → token stream → messages.
//
// gRPC calls OnReadDone, OnWriteDone, OnCancel and OnDone; the front pool calls Prepare; the engine's thread calls
// Pump.  At most one write is under way; Finish is called once.  The object deletes itself in OnDone, which waits until
// Prepare is over.  A call ends when its request does not come within request_message_timeout (DEADLINE_EXCEEDED), or a
// second message comes (INVALID_ARGUMENT).  A client that does not read gets SLOW_READER after slow_client_timeout; if
// it does not read that either, its stream is reset, so that OnDone comes in bounded time.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/api/request_context.h"
#include "server/engine/token_stream.h"

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
  // State of the request.  In kPreparing, Prepare runs or waits in the pool; the object outlives that.
  enum class Stage { kAwaited, kPreparing, kDone };

  void CheckTime(absl::Time now) override;
  // Returns when the client, or its request, is overdue.
  absl::Time NextCheck() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Takes a place for this call; the error says why there is none, or why its key may not make it.
  absl::Status Enter();
  // Moves from kAwaited to `next`; returns false in any other stage.
  bool TakeRequest(Stage next);
  // Ends a call that is under way, and its work, for what its client did.
  void End(const absl::Status& status);
  void Prepare();
  // Take the request, and the tokens that it may use, from its key's quotas.  QUOTA: there is not enough.
  absl::Status CountRequest();
  absl::Status TakeTokens(const InferenceRequest& request);
  // Gives back to the key's quota what the call did not use, and counts what it did.
  void SettleQuota();
  void Refuse(const absl::Status& status);
  // Starts the next write or finishes the call, if neither is under way.
  void Pump();
  void FinishOnce(const absl::Status& status);

  RequestContext* const request_context_;
  grpc::CallbackServerContext* const context_;
  const absl::StatusOr<Caller> caller_;
  const std::string client_;
  bool has_place_ = false;     // the call counts among the open ones
  bool has_share_ = false;     // the call counts in its client's share
  grpc::ByteBuffer incoming_;  // being read
  grpc::ByteBuffer request_;
  const absl::Time arrival_;
  const uint64_t handle_;
  const std::shared_ptr<TokenStream> stream_;  // shared with the engine's live request
  std::atomic<bool> cancelled_{false};

  absl::Mutex mu_;
  Stage stage_ ABSL_GUARDED_BY(mu_) = Stage::kAwaited;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool reset_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time since_ ABSL_GUARDED_BY(mu_);  // when the current write, or the end, began
  bool first_ ABSL_GUARDED_BY(mu_) = true;
  std::string request_id_ ABSL_GUARDED_BY(mu_);
  int64_t taken_tokens_ ABSL_GUARDED_BY(mu_) = 0;  // of the key's quota; 0: the request did not get that far
  int64_t prompt_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t sent_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  absl::StatusCode end_ ABSL_GUARDED_BY(mu_) = absl::StatusCode::kOk;
  bool by_client_ ABSL_GUARDED_BY(mu_) = false;  // End was called
  uint64_t seed_ ABSL_GUARDED_BY(mu_) = 0;
  std::string model_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer writing_buffer_;
};

}  // namespace switchyard::server
