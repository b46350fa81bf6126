// Collects a request's record while the request is under way, from its call and from the engine; when both have let go
// of it, the record goes to the observer.
//
// Thread-safe.  Shared: by the call (gRPC or HTTP), its generations, and the engine's live requests.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/observe/request_record.h"

namespace switchyard::server {

class ObservedRequest {
 public:
  using Finish = std::function<void(RequestRecord record)>;

  // `record` has what is known at the arrival.  `finish` gets it at the end, on the thread that let go last; it must
  // not block.
  ObservedRequest(RequestRecord record, Finish finish);
  ~ObservedRequest();
  ObservedRequest(const ObservedRequest&) = delete;
  ObservedRequest& operator=(const ObservedRequest&) = delete;

  // Whether its spans are exported, so that what only they show is worth collecting.
  bool traced() const { return traced_; }

  // --- the call ---
  // Notes what a request asks for, also one that is refused then; several prompts of one call add up.
  struct Asked {
    std::string id, model;
    bool is_chat = false;
  };
  void SetAsked(Asked asked);
  struct Accepted {
    int64_t prompt_tokens = 0;
    int32_t num_choices = 1;
    int32_t max_tokens = 0;
    batching::SamplingParams sampling;  // its logit_bias and stop_ids are not kept
  };
  void AddAccepted(Accepted accepted);
  void SetStream(bool is_stream);
  // The head of the answer was sent.
  void SetHttpStatus(int status);
  // The call has ended for its client.  Only the first end counts; without one the record says ABORTED.
  void SetEnd(const absl::Status& status, absl::Time now);

  // --- the engine ---
  void AddChoice(ChoiceRecord choice);

 private:
  const bool traced_;
  const Finish finish_;
  absl::Mutex mu_;
  RequestRecord record_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
