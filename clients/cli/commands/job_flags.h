// The flags of `switchyard train submit`: a row for each field of JobSpec.
#pragma once

#include "clients/cli/request_fields.h"

namespace switchyard::cli {

template <>
absl::Span<const RequestField<v1::JobSpec>> RequestFields();

}  // namespace switchyard::cli
