// What a model's output is made of: content, reasoning, tool calls, in the order in which the model wrote them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace switchyard::text {

struct OutputEvent {
  enum class Kind : uint8_t {
    kContent,        // text: more of the answer
    kReasoning,      // text: more of the reasoning (reasoning_content)
    kToolBegin,      // text: the function's name; id
    kToolArguments,  // text: more of the arguments, as JSON text
    kToolEnd,        // complete: the arguments are one whole JSON object
  };

  Kind kind = Kind::kContent;
  int index = -1;  // of a tool call: 0 for the first of this output
  std::string text = {};
  std::string id = {};   // of kToolBegin: the call's id where the format writes one (Kimi K2, Mistral), else empty
  bool complete = true;  // of kToolEnd
};

// Appends to a list of events; text joins the event before it where that is of the same kind and call.
// Thread-compatible.
class EventList {
 public:
  using Kind = OutputEvent::Kind;

  // `events` is borrowed.
  explicit EventList(std::vector<OutputEvent>* events) : events_(events) {}

  void Text(Kind kind, int index, absl::string_view text) {
    if (text.empty()) return;
    if (events_->empty() || events_->back().kind != kind || events_->back().index != index) {
      events_->push_back({kind, index});
    }
    events_->back().text.append(text.data(), text.size());
  }
  void Add(OutputEvent event) { events_->push_back(std::move(event)); }

 private:
  std::vector<OutputEvent>* const events_;
};

}  // namespace switchyard::text
