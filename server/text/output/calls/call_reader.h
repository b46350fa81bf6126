// Reads one call behind the marker that opens it: runs the steps of a ToolFormat byte by byte.
//
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "server/text/output/calls/call_sink.h"
#include "server/text/output/calls/json_scanner.h"
#include "server/text/output/calls/marker_matcher.h"
#include "server/text/output/calls/object_reader.h"
#include "server/text/output/calls/parameter_reader.h"
#include "server/text/output/calls/tool_types.h"
#include "server/text/output/formats/output_format.h"

namespace switchyard::text {

class CallReader {
 public:
  // All are borrowed.
  CallReader(const ToolFormat& format, const ToolTypes& types, CallSink* sink);

  // Begins a call at step `first`.  With `known_tools_only` one that names no tool of the request fails.  `name`: of
  // the function, where the format's steps have none.
  void Start(int first, bool known_tools_only, absl::string_view name = "");
  CallStatus Take(char byte);
  // How many of the bytes taken, at the end, may still be of a marker.
  size_t held() const { return matcher_.held().size() + parameters_.held(); }

 private:
  using Op = CallStep::Op;

  const CallStep& step() const { return format_.steps[step_]; }
  void Next();
  CallStatus TakeAgain(const std::string& bytes);
  CallStatus TakeForMarker(char byte);
  CallStatus TakeForWord(char byte);
  CallStatus EndWord();
  CallStatus TakeForArguments(char byte);
  CallStatus TakeForObjects(char byte);

  const ToolFormat& format_;
  const ToolTypes& types_;
  CallSink* const sink_;
  int step_ = 0;
  bool known_tools_only_ = false;
  bool in_id_ = false;    // of kMayId: behind the marker
  bool in_json_ = false;  // of kArguments: behind {
  MarkerMatcher matcher_;
  absl::string_view marker_;  // that matcher_ looks for
  std::string word_, name_, id_;
  JsonScanner scanner_;
  std::optional<ObjectReader> objects_;
  ParameterReader parameters_;
};

}  // namespace switchyard::text
