// The fields of the requests that the CLI sends, and how a flat JSON object becomes a request.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "clients/cli/field.h"
#include "clients/cli/json_fwd.h"
#include "clients/cpp/messages_fwd.h"

namespace switchyard::cli {

// The table of a request.
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

// A request from {"field": value, ...}.  BadInput names the field; an unknown one comes with the nearest name.
// Does not check what the server checks better (ranges, exclusive fields with values), only that the prompt is one.
template <class Request>
absl::StatusOr<Request> BuildRequest(const Json& object);

}  // namespace switchyard::cli
