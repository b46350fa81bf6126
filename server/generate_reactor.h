// One Generate call: raw request → front pool (parse, render, tokenize) → engine → token stream → messages.
//
// gRPC calls OnWriteDone, OnCancel and OnDone; the front pool calls Prepare; the engine's thread calls Pump.  At most
// one write is under way; Finish is called once.  The object deletes itself in OnDone, which waits for Prepare to be
// over.  A client that does not read is ended as SLOW_READER after slow_client_timeout, and its stream is reset when it
// does not take the end either: OnDone comes in bounded time.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/front_desk.h"
#include "server/token_stream.h"

namespace switchyard {

class GenerateReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, private OpenCalls::Call {
 public:
  // `desk` is borrowed and outlives the gRPC server.  `request` is copied (its slices are shared).
  GenerateReactor(FrontDesk* desk, grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void CheckTime(absl::Time now) override;
  void Prepare();
  void Refuse(const absl::Status& status);
  // Starts the next write or finishes, if neither is under way.
  void Pump();
  void FinishOnce(const absl::Status& status);

  FrontDesk* const desk_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer request_;
  const absl::Time arrival_;
  const uint64_t handle_;
  const std::shared_ptr<TokenStream> stream_;  // shared with the engine's live request
  std::atomic<bool> cancelled_{false};

  absl::Mutex mu_;
  bool preparing_ ABSL_GUARDED_BY(mu_) = true;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool reset_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time since_ ABSL_GUARDED_BY(mu_);  // when the write that is under way began, or the end
  bool first_ ABSL_GUARDED_BY(mu_) = true;
  std::string request_id_ ABSL_GUARDED_BY(mu_);
  uint64_t seed_ ABSL_GUARDED_BY(mu_) = 0;
  std::string model_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer writing_buffer_;
};

}  // namespace switchyard
