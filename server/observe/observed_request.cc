#include "server/observe/observed_request.h"

#include <utility>

#include "proto/support/errors.h"
#include "scheduler/base/clock.h"

namespace switchyard::server {
namespace {

constexpr size_t kMostNameBytes = 128;  // of names that a refused request may have, which are of any length

std::string Cut(std::string text) {
  if (text.size() > kMostNameBytes) text.resize(kMostNameBytes);
  return text;
}

}  // namespace

ObservedRequest::ObservedRequest(RequestRecord record, Finish finish)
    : traced_(record.trace.sampled && !record.trace.span_id.empty()),
      finish_(std::move(finish)),
      record_(std::move(record)) {}

ObservedRequest::~ObservedRequest() {
  absl::MutexLock lock(&mu_);
  if (record_.code.empty()) record_.code = absl::StatusCodeToString(absl::StatusCode::kAborted);
  if (record_.end < record_.arrival) record_.end = MonotonicNow();
  record_.wall_offset = absl::Now() - MonotonicNow();
  finish_(std::move(record_));
}

void ObservedRequest::SetAsked(Asked asked) {
  absl::MutexLock lock(&mu_);
  if (record_.id.empty()) record_.id = Cut(std::move(asked.id));
  if (!asked.model.empty()) record_.model = Cut(std::move(asked.model));
  record_.is_chat = record_.is_chat || asked.is_chat;
}

void ObservedRequest::AddAccepted(Accepted accepted) {
  accepted.sampling.logit_bias.clear();
  accepted.sampling.stop_ids.clear();
  absl::MutexLock lock(&mu_);
  ++record_.num_prompts;
  record_.prompt_tokens += accepted.prompt_tokens;
  record_.num_choices = accepted.num_choices;
  record_.max_tokens = accepted.max_tokens;
  record_.sampling = std::move(accepted.sampling);
}

void ObservedRequest::SetStream(bool is_stream) {
  absl::MutexLock lock(&mu_);
  record_.is_stream = is_stream;
}

void ObservedRequest::SetHttpStatus(int status) {
  absl::MutexLock lock(&mu_);
  if (!record_.http_status.has_value()) record_.http_status = status;
}

void ObservedRequest::SetEnd(const absl::Status& status, absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (!record_.code.empty()) return;
  record_.code = absl::StatusCodeToString(status.code());
  if (const v1::ErrorReason reason = rpc::ReasonOf(status); reason != v1::ERROR_REASON_UNSPECIFIED)
    record_.reason = v1::ErrorReason_Name(reason);
  record_.end = now;
}

void ObservedRequest::AddChoice(ChoiceRecord choice) {
  absl::MutexLock lock(&mu_);
  record_.choices.push_back(std::move(choice));
}

}  // namespace switchyard::server
