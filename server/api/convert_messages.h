// The parts of convert.h that are about conversations and outputs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/api/convert.h"

namespace switchyard::server {

// INVALID_ARGUMENT when a field has more than `limit` of something: "5 strings, limit 4".
absl::Status CheckCount(const char* field, size_t count, const char* of_what, size_t limit);

// RESOURCE_EXHAUSTED, TEXT_LIMIT: `status` of a template or tokenizer that hit its bounds.
absl::Status TextLimit(const char* field, const absl::Status& status);

// Renders the messages by the chat template.  FAILED_PRECONDITION without a template; INVALID_ARGUMENT for bad JSON
// in extra_json, tools or template_args_json, for too much of anything, and for what the template itself refuses;
// RESOURCE_EXHAUSTED when rendering takes more steps, depth or bytes than it may.
absl::StatusOr<std::string> RenderMessages(const v1::Messages& messages, const ConvertArgs& args);

}  // namespace switchyard::server
