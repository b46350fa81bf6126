// Conversion of conversations to prompts; a part of convert.h.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/api/convert.h"

namespace switchyard::server {

inline constexpr int kMaxJsonKeys = 2048;  // of one JSON text of a conversation

// Returns INVALID_ARGUMENT if a field has more than `limit` of something: "5 strings, limit 4".
absl::Status CheckCount(const char* field, size_t count, const char* of_what, size_t limit);

// Makes RESOURCE_EXHAUSTED (TEXT_LIMIT) of the `status` of a template or tokenizer that hit its bounds.
absl::Status TextLimit(const char* field, const absl::Status& status);

// Renders the messages by the chat template.  FAILED_PRECONDITION without a template; INVALID_ARGUMENT for bad JSON in
// extra_json, tools or template_args_json, for too many of anything, and for messages that the template itself refuses;
// RESOURCE_EXHAUSTED when rendering takes more steps, depth or bytes than it may.
absl::StatusOr<std::string> RenderMessages(const v1::Messages& messages, const ConvertArgs& args);

}  // namespace switchyard::server
