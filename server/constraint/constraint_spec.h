// What an output must be, before it is compiled (constraint_compiler.h).  Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::server {

// A call of a function, in the words of the model's format.
struct CallSpec {
  std::string name;        // the function's, for errors
  std::string before;      // text before the arguments
  std::string parameters;  // the JSON schema of the arguments
  std::string behind;      // text that ends the call
  bool is_strict = false;  // a schema that cannot be held to is an error; else the arguments are any object then
};

// Free text that comes before what is constrained: a model's reasoning.
struct FreeText {
  std::string open;     // begins it; empty: the output begins within it
  std::string close;    // ends it; empty: there is no free text
  bool may_be = false;  // the output may also begin without it
};

struct ConstraintSpec {
  enum class Kind : uint8_t { kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar, kCalls };
  Kind kind = Kind::kJsonObject;
  std::string text = {};                  // of kJsonSchema, kRegex, kGrammar
  std::vector<std::string> choices = {};  // of kChoice
  std::vector<CallSpec> calls = {};       // of kCalls: one of them …
  std::string between = {};               // … or several with this text between them, if it is not empty
  std::string end = {};                   // of kCalls: behind the last one
  FreeText reasoning = {};
};

}  // namespace switchyard::server
