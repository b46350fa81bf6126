// One generation, whatever brought its request (gRPC or HTTP): its place among the open ones, its key's quotas, the
// preparation of the request, the engine's work and the stream of tokens.
//
//   Enter → Prepare (on the front pool) → Attach → Next … until Finished
//
// Thread-safe: the call's threads, the front pool and the engine's thread use it.  Its owner must not destroy it during
// Prepare.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/api/request_context.h"
#include "server/engine/token_stream.h"

namespace switchyard::server {

class Generation {
 public:
  using ParseFn = absl::FunctionRef<absl::Status(v1::GenerateRequest* message)>;
  using ArgsFn = absl::FunctionRef<absl::StatusOr<ConvertArgs>(std::shared_ptr<const ServedModel>* model)>;

  // `request_context` is borrowed and outlives it.  `caller`: who makes the call, or why nobody may.  `peer`: gRPC's
  // name; without keys its address's share of places is used.  `observed`: of the call, which says itself when it ends;
  // null: nobody observes it.
  Generation(RequestContext* request_context, absl::StatusOr<Caller> caller, absl::string_view peer,
             std::shared_ptr<ObservedRequest> observed);
  // Gives back its place and what it did not use of its key's quota.  The engine's work must have ended or be
  // cancelled.
  ~Generation();

  // Takes a place for this call; the error says why there is none, or why its key may not make it.  Call once.
  absl::Status Enter();
  // Counts the request by its key's quotas, parses and converts it, and submits it to the engine.  Call once.
  absl::Status Prepare(ParseFn parse, ArgsFn args);
  // Sets what is called, on the engine's thread, when Next or Finished have something new; null: nothing is called any
  // more once this has returned.  REQUIRES: Prepare was OK.
  void Attach(std::function<void()> notify) { stream_->Attach(std::move(notify)); }
  // Returns the next message, the first one with id, model and seed; null if none waits.
  std::unique_ptr<v1::GenerateResponse> Next();
  // Whether all was read, or the work ended with an error, which does not wait for what was not read.
  bool Finished(absl::Status* end) const { return stream_->Finished(end); }

  // The end of the engine's work, if it has ended; what it made may wait to be read.
  std::optional<absl::Status> end() const { return stream_->end(); }

  // Ends the work; a request in preparation is not begun, or cancelled right after it begins.  `by_client`: for what
  // its client did, so that the prompt counts.
  void Cancel(const absl::Status& why, bool by_client);
  bool cancelled() const { return cancelled_.load(); }
  // Says how the call ended, for the quota.  Only the first end counts.
  void SetEnd(absl::StatusCode code);

  const absl::StatusOr<Caller>& caller() const { return caller_; }
  absl::Time arrival() const { return arrival_; }
  int64_t prompt_tokens() const {
    absl::MutexLock lock(&mu_);
    return prompt_tokens_;
  }
  std::string request_id() const {
    absl::MutexLock lock(&mu_);
    return request_id_;
  }

 private:
  // Takes a place (1) or gives it back (-1); returns how many are taken.
  int CountPlace(int change);
  // Count the request, and the tokens that it may use, against its key's quotas.  QUOTA: there is not enough.
  absl::Status CountRequest();
  absl::Status TakeTokens(const InferenceRequest& request);
  void SettleQuota();
  // Notes the request for its observer.
  void Observe(const v1::GenerateRequest& message, const InferenceRequest* request);

  RequestContext* const request_context_;
  const absl::StatusOr<Caller> caller_;
  const std::string share_;  // the client whose share of places is used
  const absl::Time arrival_;
  const std::shared_ptr<ObservedRequest> observed_;  // shared: with the call and the engine; or null
  const uint64_t handle_;
  const std::shared_ptr<TokenStream> stream_;  // shared with the engine's live request
  bool has_place_ = false;                     // among the open calls
  bool has_share_ = false;                     // in its client's share
  std::atomic<bool> cancelled_{false};

  mutable absl::Mutex mu_;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  std::string request_id_ ABSL_GUARDED_BY(mu_);
  uint64_t seed_ ABSL_GUARDED_BY(mu_) = 0;
  std::string model_ ABSL_GUARDED_BY(mu_);
  int64_t taken_tokens_ ABSL_GUARDED_BY(mu_) = 0;  // of the key's quota; 0: the request did not get that far
  int64_t prompt_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t sent_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<absl::StatusCode> end_ ABSL_GUARDED_BY(mu_);
  bool by_client_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace switchyard::server
