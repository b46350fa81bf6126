// A unary call that is answered later: from the front pool, or by another thread.
//
// A method's handler makes it, and asks Refused first.  Reply or Fail must be called exactly once, from any thread; the
// call then deletes itself when gRPC is done with it.  A client that does not read its answer is reset after
// ServerConfig::unread_end_timeout.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/clock.h"
#include "server/api/request_context.h"

namespace switchyard::server {

class UnaryCall final : public grpc::ServerUnaryReactor, private OpenCalls::Call {
 public:
  UnaryCall(RequestContext* request_context, grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
            grpc::ByteBuffer* response, absl::string_view method)
      : request_context_(request_context),
        context_(context),
        request_(*request),
        response_(response),
        caller_(request_context->Admit(*context, method)) {
    request_context_->open_calls.Add(this);
  }

  void OnCancel() override { cancelled_.store(true); }
  void OnDone() override {
    request_context_->open_calls.Remove(this);
    delete this;
  }

  // Fails the call, and returns true, if its key may not call `method` (a name of keys/roles.h).
  [[nodiscard]] bool Refused() {
    if (caller_.ok()) return false;
    Fail(caller_.status());
    return true;
  }
  // REQUIRES: Refused has returned false.
  const Caller& caller() const { return *caller_; }

  // Runs `work(call)` on the pool.  REQUIRES: Refused has returned false.  It must lead to one call of Reply or Fail.
  template <class WorkFn>
  void Start(WorkFn work) {
    StartOn(request_context_->pool, std::move(work));
  }
  template <class WorkFn>
  void StartOn(FrontPool* pool, WorkFn work) {
    pool->Post({.client = RequestContext::FrontClient(caller(), *context_),
                .bytes = static_cast<int64_t>(request_.Length()),
                .run = [this, work = std::move(work)]() mutable { work(this); },
                .refuse = [this](const absl::Status& why) { Fail(why); }});
  }
  void Reply(const google::protobuf::Message& message) {
    *response_ = rpc::SerializeRaw(message);
    End(grpc::Status::OK);
  }
  void Fail(const absl::Status& status) {
    request_context_->metrics->request_error(status.code()).Increment();
    // (Request and token quotas are counted where they are used up, for HTTP, too: generation.cc.)
    if (rpc::ReasonOf(status) == v1::DISK_QUOTA) request_context_->metrics->call_refused("DISK_QUOTA").Increment();
    End(OnTheWire(status, request_id_, context_));
  }
  void Answer(const absl::Status& status, const google::protobuf::Message& message) {
    status.ok() ? Reply(message) : Fail(status);
  }

  // Sets the id of the request that the call is about, for errors.
  void set_request_id(std::string id) { request_id_ = std::move(id); }

  RequestContext* request_context() { return request_context_; }
  grpc::CallbackServerContext* context() { return context_; }
  const grpc::ByteBuffer& request() const { return request_; }
  const std::atomic<bool>& cancelled() const { return cancelled_; }

 private:
  // noexcept, since running out of memory here must not end the call a second time.
  void End(const grpc::Status& status) noexcept {
    CheckAt(MonotonicNow() +
            request_context_->config->unread_end_timeout);  // before Finish: OnDone may delete this at once
    Finish(status);
  }
  void CheckTime(absl::Time) override {
    CheckAt(absl::InfiniteFuture());
    context_->TryCancel();
  }

  RequestContext* const request_context_;
  grpc::CallbackServerContext* const context_;
  const grpc::ByteBuffer request_;
  grpc::ByteBuffer* const response_;
  const absl::StatusOr<Caller> caller_;
  std::string request_id_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace switchyard::server
