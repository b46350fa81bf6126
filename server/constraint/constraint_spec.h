// What an output must be, before it is compiled (constraint_compiler.h).  Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::server {

// A call of a function, in the words of the model's format.
struct CallSpec {
  std::string name = {};        // the function's, for errors
  std::string before = {};      // text before the arguments
  std::string parameters = {};  // the JSON schema of the arguments
  std::string behind = {};      // text that ends the call
  bool is_strict = false;       // a schema that cannot be held to is an error; else the arguments are any object then
};

// Free text that comes before what is constrained: a model's reasoning.
struct FreeText {
  std::string open;                       // begins it; empty: the output begins within it
  std::string close;                      // ends it; empty: there is no free text
  bool may_be = false;                    // the output may also begin without it
  std::vector<std::string> without = {};  // texts that are not in it
};

// How arguments are written that are not JSON: for each parameter key_open, its name, behind_key, the value, close.
// Texts are written as they are, other values as JSON.
struct ArgumentMarkup {
  std::string key_open, behind_key;               // key_open is empty: arguments are JSON
  std::string before_close, close, behind_close;  // the middle one ends a value, the others are white space
  std::vector<std::string> not_in_values;         // what readers look for, without marks
  bool trims_newlines = false;                    // a line feed at each end of a value is not part of it
  bool unknown_is_text = false;                   // as text::ParameterSyntax
};

struct ConstraintSpec {
  enum class Kind : uint8_t { kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar, kCalls };
  Kind kind = Kind::kJsonObject;
  std::string text = {};                  // of kJsonSchema, kRegex, kGrammar
  std::vector<std::string> choices = {};  // of kChoice
  ArgumentMarkup markup = {};             // of kCalls
  std::vector<CallSpec> calls = {};       // of kCalls: one of them …
  std::string between = {};               // … or several with this text between them, if it is not empty
  std::string end = {};                   // of kCalls: behind the last one
  // Of kCalls: the output is free text, without `not_in_text`, which may end, or go on with both openers and the calls.
  // Empty: calls must come.
  std::string opener = {}, behind_opener = {};
  std::vector<std::string> not_in_text = {};
  FreeText reasoning = {};
};

}  // namespace switchyard::server
