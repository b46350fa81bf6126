// Tables of the fields of the CLI's requests, and the conversion of a flat JSON object to a request.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "clients/cli/field.h"
#include "clients/cli/json_fwd.h"
#include "clients/cpp/messages_fwd.h"

namespace switchyard::cli {

// Returns the table of a request's fields.
template <class Request>
absl::Span<const RequestField<Request>> RequestFields();
template <>
absl::Span<const RequestField<v1::GenerateRequest>> RequestFields();
template <>
absl::Span<const RequestField<v1::TokenizeRequest>> RequestFields();
template <>
absl::Span<const RequestField<v1::DetokenizeRequest>> RequestFields();
template <>
absl::Span<const RequestField<v1::JobSpec>> RequestFields();  // commands/job_flags.cc

// Makes a request from {"field": value, ...}.  BadInput names the field; for an unknown one it suggests the nearest
// name.  Checks only that there is exactly one prompt: the server checks ranges and exclusive fields.
template <class Request>
absl::StatusOr<Request> BuildRequest(const Json& object);

}  // namespace switchyard::cli
