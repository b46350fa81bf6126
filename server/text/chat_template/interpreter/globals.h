// The functions every template can call: namespace, range, dict, joiner, cycler, raise_exception, strftime_now.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/chat_template/interpreter/runtime.h"

namespace switchyard::jinja {

absl::StatusOr<std::vector<std::pair<std::string, Value>>> MakeGlobals(Runtime& runtime);

}  // namespace switchyard::jinja
