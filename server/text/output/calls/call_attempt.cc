#include "server/text/output/calls/call_attempt.h"

#include <algorithm>
#include <utility>

namespace switchyard::text {

CallAttempt::CallAttempt(const ToolFormat& format, const ToolTypes& types, bool whole_calls, size_t max_held_bytes,
                         EventList* events)
    : whole_calls_(whole_calls), max_held_bytes_(max_held_bytes), events_(events), reader_(format, types, this) {}

void CallAttempt::Start(absl::string_view opened, int first_step, bool known_tools_only, absl::string_view name) {
  raw_ = std::string(opened);
  waiting_.clear();
  began_ = went_on_ = false;
  may_begin_ = 0;
  reader_.Start(first_step, known_tools_only, name);
}

CallStatus CallAttempt::Take(char byte) {
  may_begin_ = reader_.held() + 1;
  raw_ += byte;
  went_on_now_ = false;
  CallStatus status = reader_.Take(byte);
  if (went_on_now_) {
    raw_.erase(0, raw_.size() - (status == CallStatus::kMore ? reader_.held() : status == CallStatus::kDone ? 0 : 1));
  }
  if (status == CallStatus::kMore && raw_.size() > max_held_bytes_) status = CallStatus::kFailed;
  return status;
}

void CallAttempt::EndEmpty(absl::string_view name) {
  Begin(name, "");
  Arguments("{}");
  End();
}

CallAttempt::Broken CallAttempt::Break() {
  if (std::exchange(began_, false) && !whole_calls_) {
    events_->Add({.kind = OutputEvent::Kind::kToolEnd, .index = index_++, .complete = false});
  }
  waiting_.clear();
  // What began this attempt does not begin it again.
  const size_t first = went_on_ || raw_.empty() ? 0 : 1;
  const size_t again = std::min(may_begin_, raw_.size() - first);
  Broken broken{raw_.substr(0, raw_.size() - again), raw_.substr(raw_.size() - again)};
  raw_.clear();
  return broken;
}

void CallAttempt::Begin(absl::string_view name, absl::string_view id) {
  began_ = true;
  EventList waiting(&waiting_);
  (whole_calls_ ? &waiting : events_)->Add({OutputEvent::Kind::kToolBegin, index_, std::string(name), std::string(id)});
  went_on_ = went_on_ || !whole_calls_;
  went_on_now_ = went_on_;
}

void CallAttempt::Arguments(absl::string_view json) {
  EventList waiting(&waiting_);
  (whole_calls_ ? &waiting : events_)->Text(OutputEvent::Kind::kToolArguments, index_, json);
  went_on_now_ = !whole_calls_;
}

void CallAttempt::End() {
  for (OutputEvent& event : waiting_) events_->Add(std::move(event));
  waiting_.clear();
  events_->Add({OutputEvent::Kind::kToolEnd, index_++});
  began_ = false;
  went_on_ = went_on_now_ = true;
}

}  // namespace switchyard::text
