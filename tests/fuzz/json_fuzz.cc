// The strict reader of JSON.  What it takes is the same when it is written and read again, for both kinds of objects,
// and leniently; what it refuses it refuses alike each time.
#include "nlohmann/json.hpp"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/strict_json.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

template <class Json>
std::optional<JsonFault> Read(absl::string_view text, const JsonLimits& limits) {
  Json value;
  std::optional<JsonFault> fault = ReadJson(text, limits, &value);
  if (!fault) {
    Json again;
    SY_CHECK(!ReadJson(value.dump(), limits, &again));
    SY_CHECK(again == value);
    SY_CHECK_EQ(again.dump(), value.dump());
    SY_CHECK_EQ(JsonText(value), value.dump());  // all text is UTF-8
  }
  return fault;
}

void CheckAlike(const std::optional<JsonFault>& a, const std::optional<JsonFault>& b) {
  SY_CHECK_EQ(a.has_value(), b.has_value());
  if (!a) return;
  SY_CHECK(a->kind == b->kind);
  SY_CHECK_EQ(a->reason, b->reason);
  SY_CHECK_EQ(a->detail, b->detail);
}

}  // namespace

void Fuzz(absl::string_view input) {
  for (const JsonLimits& limits : {JsonLimits{}, LenientJson(6, 20), JsonLimits{3, 12, 4, 5, false}}) {
    const auto fault = Read<nlohmann::json>(input, limits);
    CheckAlike(fault, Read<nlohmann::json>(input, limits));
    CheckAlike(fault, Read<nlohmann::ordered_json>(input, limits));
    if (!fault && !limits.lenient) SY_CHECK(!Read<nlohmann::json>(input, LenientJson(limits.max_depth)));
  }
  const auto object = ParseJsonObject("x", input, {});
  if (object.ok()) SY_CHECK(object->is_object());
  if (object.ok()) SY_CHECK(ParseStrictJson("x", input, {}).ok());
}

}  // namespace switchyard::fuzz
