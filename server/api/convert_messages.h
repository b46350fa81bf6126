// The parts of convert.cc that handle conversations and outputs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/api/convert.h"

namespace switchyard::server {

absl::Status CheckPromptBytes(const char* field, size_t bytes, const RequestLimits& limits);

// RESOURCE_EXHAUSTED, TEXT_LIMIT: what the template or the tokenizer said when it hit its bounds.
absl::Status TextLimit(const char* field, const absl::Status& status);

// What the chat template makes of the messages.  FAILED_PRECONDITION without a template; INVALID_ARGUMENT for bad JSON
// in extra_json, tools or template_args_json, for too much of anything, and for what the template itself refuses;
// RESOURCE_EXHAUSTED when rendering takes more steps, depth or bytes than it may.
absl::StatusOr<std::string> RenderMessages(const v1::Messages& messages, const ConvertArgs& args);

}  // namespace switchyard::server
