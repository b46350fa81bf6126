// Codec of a training job's spec, for the worker link and the API.
//
// It refuses only enum values and names that this program does not know; job_spec.h checks the numbers.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/job_spec.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::link {

// Sets every field, except balance_weight if the spec leaves it to the model.
v1::JobSpec ToProto(const jobs::JobSpec& spec);

struct SpecProblem {
  absl::string_view field;  // "spec.precision"
  std::string text;         // what is wrong with the field
  std::string limit;        // the allowed values
  std::string actual;       // the value found; text is quoted as it came
  bool is_text = false;
};

// The program that reads a spec: "server" or "worker", and how it makes an error.
struct SpecReader {
  absl::string_view name;
  absl::FunctionRef<absl::Status(const SpecProblem& problem)> error;
};

// Unset fields get the struct's defaults; labels are sorted by name.  Errors are made by reader.error.
absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& message, const SpecReader& reader);

}  // namespace switchyard::link
