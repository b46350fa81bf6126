// What a training job is as a message, of the worker link and of the API, and back.
//
// Here it is only what a message can say wrong by itself: a name of an enum that this program does not know.  What the
// numbers may be is job_spec.h's.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/job_spec.h"
#include "switchyard/v1/training.pb.h"

namespace switchyard::link {

// Everything is set, but for what is the model's where it is unset: balance_weight.
v1::JobSpec ToProto(const jobs::JobSpec& spec);

struct SpecProblem {
  absl::string_view field;  // "spec.precision"
  std::string text;         // what is wrong with it
  std::string limit;        // what may be
  std::string actual;       // what is; where it is text, as it came
  bool is_text = false;
};

// The program that reads a spec: "server" or "worker", and how it makes an error.
struct SpecReader {
  absl::string_view name;
  absl::FunctionRef<absl::Status(const SpecProblem& problem)> error;
};

// What is unset has the struct's default; labels come by name.  An error is reader.error's.
absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& message, const SpecReader& reader);

}  // namespace switchyard::link
