// One GetProfile call: the workers are asked (profile_collector.h), told how far that is, and what they learned goes to
// the client as one profile, in parts.
//
// The engine's thread says how far it is and when it is done, the front pool merges, gRPC calls On….  At most one write
// is under way; Finish is called once, and not before the collector is done with the call: OnDone, which deletes it, is
// the last.  A client that does not read is reset after slow_client_timeout.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/api/request_context.h"
#include "server/engine/profile_collector.h"
#include "switchyard/v1/admin.pb.h"

namespace switchyard::server {

class ProfileCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, private OpenCalls::Call {
 public:
  static constexpr size_t kPartBytes = size_t{1} << 20;

  // `desk` is borrowed and outlives the gRPC server.
  ProfileCall(RequestContext* request_context, grpc::CallbackServerContext* context)
      : request_context_(request_context), context_(context) {
    request_context_->open_calls.Add(this);
  }
  void Start(const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  void CheckTime(absl::Time now) override;
  void Merge(const std::vector<std::string>& bundles);
  void End(absl::StatusOr<std::string> profile);
  // Starts the next write or finishes, if neither is under way.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Write(const v1::GetProfileResponse& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  RequestContext* const request_context_;
  grpc::CallbackServerContext* const context_;
  std::string model_, weights_hash_;

  absl::Mutex mu_;
  std::optional<v1::GetProfileResponse> progress_ ABSL_GUARDED_BY(mu_);      // to be told; only the last counts
  std::optional<absl::StatusOr<std::string>> profile_ ABSL_GUARDED_BY(mu_);  // none: workers are still asked
  size_t sent_ ABSL_GUARDED_BY(mu_) = 0;                                     // bytes of it
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;  // the client is gone
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time since_ ABSL_GUARDED_BY(mu_);  // when the write that is under way began, or the end
  grpc::ByteBuffer buffer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
