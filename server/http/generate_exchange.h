// Generations for one HTTP request: front pool → engine → pieces of the answer, as an API's writer makes them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/api/generation.h"
#include "server/http/api_errors.h"
#include "server/http/http_exchange.h"

namespace switchyard::server {

// What an API makes of a request and of its generations' messages.  One call's, used by one thread at a time.
class ResponseWriter : public OutputFrame {
 public:
  // Reads the body: a request for each prompt, in order, which Complete completes.  Errors: BAD_FIELD and the like.
  virtual absl::StatusOr<std::vector<v1::GenerateRequest>> Parse(const std::string& body) = 0;
  // Adds what the requests of all prompts have in common, right before one is converted: copies for all of them at once
  // would take as many times the body's size.
  virtual void Complete(v1::GenerateRequest* /*request*/) const {}
  // Behind the calls of OutputFrame: how many tokens the prompt has.
  virtual void SetPromptTokens(size_t /*prompt*/, int64_t /*tokens*/) {}
  // Whether the answer goes out in pieces, as server-sent events.  REQUIRES: Parse was OK.
  virtual bool streams() const = 0;
  // Notes a message of a prompt's generation; returns the events that go out now, if it streams.
  virtual std::string Add(size_t prompt, const v1::GenerateResponse& message) = 0;
  // Returns the last events, or the whole body.
  virtual std::string Finish() = 0;
  // Returns the event of an error after the first one.
  virtual std::string Fail(const absl::Status& status) = 0;
  virtual ErrorShape error_shape() const { return ErrorShape::kOpenAi; }
  std::string constraint_field() const override { return constraint_field_; }

 protected:
  std::string constraint_field_;  // set by Parse
};

// Begins to observe the request, or null.  `caller`: as below.
std::shared_ptr<ObservedRequest> ObserveHttp(const RequestContext& request_context, const HttpRequest& request,
                                             const absl::StatusOr<Caller>& caller);

// Answers `exchange`.  `caller`: who makes the call, or why nobody may.  Returns at once; on the exchange's strand.
void AnswerByGenerating(RequestContext* request_context, const std::shared_ptr<HttpExchange>& exchange,
                        const absl::StatusOr<Caller>& caller, std::unique_ptr<ResponseWriter> writer);

}  // namespace switchyard::server
