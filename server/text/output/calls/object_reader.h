// Reads calls that are JSON objects: {"name": "f", "arguments": {…}}, members in any order, or a list of these.
//
// "parameters" is the same as "arguments"; null or none is {}; a string that holds an object is that object.  Arguments
// go on as they come if the name came before them.  Other members are skipped.  Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "server/text/output/calls/call_sink.h"
#include "server/text/output/calls/json_scanner.h"
#include "server/text/output/calls/tool_types.h"

namespace switchyard::text {

class ObjectReader {
 public:
  // `sink` is borrowed.  `known`, borrowed, may be null; else a call names one of these tools, has arguments, and no
  // further member but type and id.
  ObjectReader(const ToolTypes* known, CallSink* sink) : known_(known), sink_(sink) {}

  // From { or [ on.
  CallStatus Take(char byte);

 private:
  enum class State : uint8_t {
    kStart,
    kNextObject,   // in a list
    kAfterObject,  // in a list
    kFirstKey,
    kNextKey,
    kKey,
    kColon,
    kBeforeValue,
    kValue,
    kAfterValue,
  };
  enum class Member : uint8_t { kName, kArguments, kId, kOther };

  CallStatus TakeStructure(char byte);
  CallStatus TakeKey(char byte);
  CallStatus TakeValue(char byte);
  CallStatus EndValue();
  CallStatus EndObject();
  void BeginObject();
  bool NameIsGood() const;

  const ToolTypes* const known_;
  CallSink* const sink_;
  State state_ = State::kStart;
  bool in_list_ = false;
  // Of the object:
  JsonScanner scanner_;
  Member member_ = Member::kOther;
  std::string text_;       // of the key or value that is read, as JSON
  std::string name_, id_;  // decoded
  std::string arguments_;  // JSON that waits for the name
  bool began_ = false, streams_ = false, has_arguments_ = false;
};

}  // namespace switchyard::text
