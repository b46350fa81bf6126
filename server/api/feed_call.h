// A streaming call that sends its client the newest state whenever it changes: of a watched job, or of a pack's
// progress.
//
// The feeder never waits for the client: a slow reader misses states, and a client that does not read is reset after
// ServerConfig::slow_client_timeout.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/api/request_context.h"

namespace switchyard::server {

class FeedCall;

// The feeder's side, which may outlive the call.  Thread-safe.
class Feed {
 public:
  using MessageFn = std::function<std::unique_ptr<google::protobuf::Message>()>;

  // Replaces the message to send next; `message` makes it when it can be sent.
  void Offer(MessageFn message);
  // Ends the call with `status`: OK after the newest message was sent, an error at once.  Only the first end counts.
  void End(absl::Status status);
  // Likewise with OK, after sending every message that `next` makes until it returns null.
  void EndWith(MessageFn next);
  // Whether the call is over.
  bool gone();

 private:
  friend class FeedCall;
  absl::Mutex mu_;
  FeedCall* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: the call is over
};

class FeedCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, private OpenCalls::Call {
 public:
  // `request_context` is borrowed and outlives the gRPC server.
  FeedCall(RequestContext* request_context, grpc::CallbackServerContext* context, absl::string_view method);

  // Ends the call, and returns true, if its key may not call `method` (a name of keys/roles.h).  The handler asks
  // first.
  [[nodiscard]] bool Refused();
  // REQUIRES: Refused has returned false.
  const Caller& caller() const { return *caller_; }

  std::shared_ptr<Feed> feed() const { return feed_; }  // shared with its feeder
  // Sends at most one message per `interval`, except for the last one.  REQUIRES: Offer was not called yet.
  void set_min_interval(absl::Duration interval) {
    absl::MutexLock lock(&feed_->mu_);
    min_interval_ = interval;
  }
  // Sets a function that is called once, on any thread, when the call is over.  REQUIRES: Offer was not called yet.
  void set_on_over(std::function<void()> on_over) {
    absl::MutexLock lock(&feed_->mu_);
    on_over_ = std::move(on_over);
  }

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  friend class Feed;
  void CheckTime(absl::Time now) override;
  // Starts the next write or finishes the call, if neither is under way; sets when CheckTime is due.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(feed_->mu_);
  // REQUIRES: neither a write nor the finish is under way.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(feed_->mu_);
  // Ends a call whose client is gone or has cancelled; drops messages that were not sent.
  void Abandon(absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(feed_->mu_);
  // How long the client may take for a write, or for the end.
  absl::Duration Patience() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(feed_->mu_);

  RequestContext* const request_context_;
  grpc::CallbackServerContext* const context_;
  const absl::StatusOr<Caller> caller_;
  const std::shared_ptr<Feed> feed_;
  std::function<void()> on_over_ ABSL_GUARDED_BY(feed_->mu_);
  absl::Duration min_interval_ ABSL_GUARDED_BY(feed_->mu_) = absl::ZeroDuration();
  Feed::MessageFn newest_ ABSL_GUARDED_BY(feed_->mu_);  // not sent yet
  Feed::MessageFn rest_ ABSL_GUARDED_BY(feed_->mu_);    // of EndWith
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(feed_->mu_);
  bool writing_ ABSL_GUARDED_BY(feed_->mu_) = false;
  bool finished_ ABSL_GUARDED_BY(feed_->mu_) = false;
  bool reset_ ABSL_GUARDED_BY(feed_->mu_) = false;
  absl::Time since_ ABSL_GUARDED_BY(feed_->mu_) = absl::InfinitePast();  // when the last write began, or the end
  grpc::ByteBuffer buffer_ ABSL_GUARDED_BY(feed_->mu_);
};

}  // namespace switchyard::server
