#include "server/text/output/tagged_output.h"

#include <algorithm>

#include "server/text/output/calls/json_scanner.h"

namespace switchyard::text {
namespace {

constexpr size_t kMaxSpaceBytes = 256;  // white space that is held; more of it is text

}  // namespace

TaggedOutput::TaggedOutput(const OutputFormat& format, const OutputOptions& options, EventList* events)
    : OutputReader(events),
      tools_(options.tools.empty() ? nullptr : format.tools),
      reasoning_(options.reasoning == ReasoningStart::kOver ? nullptr : format.reasoning) {
  if (tools_ != nullptr) call_.emplace(*tools_, options.tools, options.whole_calls, options.max_held_bytes, events);
  may_open_ = reasoning_ != nullptr;
  if (reasoning_ != nullptr && options.reasoning == ReasoningStart::kOpen) kind_ = Kind::kReasoning;
  Watch();
}

void TaggedOutput::Watch() {
  using What = Watched::What;
  markers_.clear();
  watched_.clear();
  const auto add = [this](absl::string_view marker, Watched watched) {
    markers_.push_back(marker);
    watched_.push_back(watched);
  };
  if (may_open_) add(reasoning_->open, {What::kThinkOpen});
  if (kind_ == Kind::kReasoning) add(reasoning_->close, {What::kThinkClose});
  if (tools_ != nullptr && (kind_ == Kind::kContent || tools_->ends_reasoning)) {
    for (const CallOpener& opener : tools_->openers) {
      if (kind_ == Kind::kContent || !opener.known_tools_only) add(opener.marker, {What::kOpener, &opener});
    }
  }
  if (behind_call_) {
    for (const absl::string_view closer : tools_->closers) add(closer, {What::kCloser});
  }
  bare_objects_ = tools_ != nullptr && tools_->bare_objects && kind_ == Kind::kContent;
  first_bytes_ = bare_objects_ ? "{" : "";
  for (const absl::string_view marker : markers_) first_bytes_ += marker.front();
  matcher_.Watch(markers_);
}

void TaggedOutput::Take(absl::string_view text) {
  while (!text.empty()) {
    if (!in_call_ && !at_start_ && matcher_.held().empty()) {
      const size_t plain = std::min(text.find_first_of(first_bytes_), text.size());
      read_ += plain;
      AddText(kind_, text.substr(0, plain));
      text.remove_prefix(plain);
      if (text.empty()) return;
    }
    TakeByte(text.front());
    text.remove_prefix(1);
  }
}

void TaggedOutput::TakeByte(char byte) {
  ++read_;
  if (in_call_) return TakeInCall(byte);
  if (matcher_.held().empty()) {
    if (at_start_ && IsJsonSpace(byte) && space_.size() < kMaxSpaceBytes) {
      space_ += byte;
      return;
    }
    if (byte == '{' && bare_objects_) {
      StartCall("", 0, true);
      return TakeInCall(byte);
    }
  }
  switch (matcher_.Take(byte)) {
    case MarkerMatcher::Step::kHeld:
      return;
    case MarkerMatcher::Step::kFound:
      return TakeMarker(watched_[matcher_.found()]);
    default:
      break;
  }
  const std::string bytes = matcher_.TakeHeld();
  read_ -= bytes.size() - 1;
  Show(absl::string_view(bytes).substr(0, 1));
  for (const char again : bytes.substr(1)) TakeByte(again);
}

void TaggedOutput::Show(absl::string_view text) {
  if (at_start_) {
    AddText(kind_, space_, text.size());
    space_.clear();
    at_start_ = behind_call_ = may_open_ = false;
    Watch();
  }
  AddText(kind_, text);
}

void TaggedOutput::BeginText(Kind kind, bool behind_call) {
  kind_ = kind;
  behind_marker_ = at_start_ = true;
  behind_call_ = behind_call;
  may_open_ = false;
  space_.clear();
  (void)matcher_.TakeHeld();
  Watch();
}

void TaggedOutput::TakeMarker(const Watched& watched) {
  switch (watched.what) {
    case Watched::What::kThinkOpen:
      return BeginText(Kind::kReasoning, false);
    case Watched::What::kThinkClose:
      return BeginText(Kind::kContent, false);
    case Watched::What::kCloser:
      return BeginText(kind_, true);
    case Watched::What::kOpener:
      StartCall(matcher_.TakeHeld(), watched.opener->first_step, watched.opener->known_tools_only);
  }
}

void TaggedOutput::StartCall(absl::string_view opened, int first_step, bool known_tools_only) {
  in_call_ = true;
  call_->Start(space_ + std::string(opened), first_step, known_tools_only);
  space_.clear();
}

void TaggedOutput::TakeInCall(char byte) {
  switch (call_->Take(byte)) {
    case CallStatus::kMore:
      return;
    case CallStatus::kDone:
      in_call_ = false;
      return BeginText(Kind::kContent, true);
    default:
      return Break();
  }
}

// What was begun is no call, or not to its end.
void TaggedOutput::Break() {
  in_call_ = false;
  if (call_->went_on()) kind_ = Kind::kContent;
  const CallAttempt::Broken broken = call_->Break();
  at_start_ = true;  // so that Show also changes what is watched for
  read_ -= broken.again.size();
  Show(broken.text);
  for (const char byte : broken.again) TakeByte(byte);
}

void TaggedOutput::Finish() {
  if (in_call_) {
    Break();
    // What it held may have begun a call again.
    if (in_call_) return Finish();
  }
  const std::string held = matcher_.TakeHeld();
  if (!held.empty()) return Show(held);
  if (!behind_marker_) Show("");
}

}  // namespace switchyard::text
