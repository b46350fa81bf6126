// A call under way, from the marker that opens it: its events, and its bytes, which are text again if it is none.
//
// Thread-compatible.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/text/output/calls/call_reader.h"
#include "server/text/output/calls/call_sink.h"
#include "server/text/output/calls/tool_types.h"
#include "server/text/output/formats/output_format.h"
#include "server/text/output/output_event.h"

namespace switchyard::text {

class CallAttempt final : public CallSink {
 public:
  // All are borrowed.  With `whole_calls` a call's events come when it is complete.  A call with more than
  // `max_held_bytes` that did not go on in events is none.
  CallAttempt(const ToolFormat& format, const ToolTypes& types, bool whole_calls, size_t max_held_bytes,
              EventList* events);

  // `opened`: the bytes that begin the call.  The rest is as CallReader::Start.
  void Start(absl::string_view opened, int first_step, bool known_tools_only, absl::string_view name = "");
  CallStatus Take(char byte);
  // Ends a call of known name that has no arguments.
  void EndEmpty(absl::string_view name);

  // Whether there is an event of this attempt.
  bool went_on() const { return went_on_; }

  struct Broken {
    std::string text;   // was no marker
    std::string again;  // may still begin a marker
  };
  // After kFailed, or at the end of the output: ends the call as incomplete if its begin went on.
  Broken Break();

  void Begin(absl::string_view name, absl::string_view id) override;
  void Arguments(absl::string_view json) override;
  void End() override;

 private:
  const bool whole_calls_;
  const size_t max_held_bytes_;
  EventList* const events_;
  CallReader reader_;
  int index_ = 0;       // of the call
  bool began_ = false;  // and its end did not come
  bool went_on_ = false;
  bool went_on_now_ = false;          // with this byte
  size_t may_begin_ = 0;              // of raw_, at its end: what may begin a marker
  std::string raw_;                   // bytes that are in no event
  std::vector<OutputEvent> waiting_;  // of a call that is not complete, with whole_calls_
};

}  // namespace switchyard::text
