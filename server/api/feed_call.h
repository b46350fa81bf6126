// A call that tells its client what is newest, again and again: a watched job, how far a pack is.
//
// Whoever feeds it never waits for its client: a slow reader misses what was told in between, and one that does not
// read at all is reset after ServerConfig::slow_client_timeout.
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/api/request_context.h"

namespace switchyard::server {

class FeedCall;

// The feeder's side; it may outlive the call.  Thread-safe.
class Feed {
 public:
  using MessageFn = std::function<std::unique_ptr<google::protobuf::Message>()>;

  // What is newest: made when it can be sent.
  void Offer(MessageFn message);
  // After what is newest was sent.  The first end counts.
  void End(absl::Status status);
  // The call is over: nobody hears any more.
  bool gone();

 private:
  friend class FeedCall;
  absl::Mutex mu_;
  FeedCall* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: it is gone
};

class FeedCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, private OpenCalls::Call {
 public:
  // `desk` is borrowed and outlives the gRPC server.
  FeedCall(RequestContext* request_context, grpc::CallbackServerContext* context);

  std::shared_ptr<Feed> feed() const { return feed_; }  // shared with its feeder
  // At most one message in so long; what is last is not held back.  Before the first Offer.
  void set_min_interval(absl::Duration interval);
  // Called once, when the client is gone or has got everything; on any thread.  Before the first Offer.
  void set_on_over(std::function<void()> on_over);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  friend class Feed;
  void CheckTime(absl::Time now) override;
  // Starts the next write or finishes, if neither is under way; says when to look at the call again.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(feed_->mu_);
  // REQUIRES: neither is under way.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(feed_->mu_);

  RequestContext* const request_context_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<Feed> feed_;
  std::function<void()> on_over_ ABSL_GUARDED_BY(feed_->mu_);
  absl::Duration min_interval_ ABSL_GUARDED_BY(feed_->mu_) = absl::ZeroDuration();
  Feed::MessageFn newest_ ABSL_GUARDED_BY(feed_->mu_);  // not sent yet
  std::unique_ptr<const absl::Status> end_ ABSL_GUARDED_BY(feed_->mu_);
  bool writing_ ABSL_GUARDED_BY(feed_->mu_) = false;
  bool finished_ ABSL_GUARDED_BY(feed_->mu_) = false;
  bool reset_ ABSL_GUARDED_BY(feed_->mu_) = false;
  absl::Time since_ ABSL_GUARDED_BY(feed_->mu_) = absl::InfinitePast();  // of the last write's start, or of the end
  grpc::ByteBuffer buffer_ ABSL_GUARDED_BY(feed_->mu_);
};

}  // namespace switchyard::server
