// Output whose reasoning and calls are between markers in its text: all formats but harmony.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/text/output/calls/call_attempt.h"
#include "server/text/output/calls/marker_matcher.h"
#include "server/text/output/output_event.h"
#include "server/text/output/output_parser.h"

namespace switchyard::text {

class TaggedOutput final : public OutputReader {
 public:
  // `options` and `events` are borrowed.
  TaggedOutput(const OutputFormat& format, const OutputOptions& options, EventList* events);

  void Take(absl::string_view text) override;
  void Finish() override;

 private:
  using Kind = OutputEvent::Kind;

  // What a marker does that is watched for.
  struct Watched {
    enum class What : uint8_t { kThinkOpen, kThinkClose, kOpener, kCloser };
    What what;
    const CallOpener* opener = nullptr;
  };

  void TakeByte(char byte);
  void TakeInCall(char byte);
  void TakeMarker(const Watched& watched);
  void StartCall(absl::string_view opened, int first_step, bool known_tools_only);
  void Break();
  // Begins text behind a marker.
  void BeginText(Kind kind, bool behind_call);
  // The text, which ends where was read to, is no white space between markers: shows what was held of that, then
  // `text`.
  void Show(absl::string_view text);
  void Watch();

  const ToolFormat* const tools_;  // null: there are no calls
  const ReasoningFormat* const reasoning_;
  std::optional<CallAttempt> call_;  // with tools_
  bool in_call_ = false;

  // Of text:
  Kind kind_ = Kind::kContent;
  bool may_open_ = false;       // the output has only white space so far, and reasoning may open
  bool behind_marker_ = false;  // there was a marker
  bool at_start_ = true;        // only white space since the marker
  bool behind_call_ = false;    // at_start_ behind a call
  std::string space_;           // that white space
  MarkerMatcher matcher_;
  std::vector<absl::string_view> markers_;
  std::vector<Watched> watched_;  // beside markers_
  bool bare_objects_ = false;     // { may begin a call
  std::string first_bytes_;       // of markers_, and of these objects
};

}  // namespace switchyard::text
