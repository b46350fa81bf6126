#include "server/api/convert_constraint.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "server/api/convert_messages.h"
#include "server/constraint/constraint_compiler.h"

namespace switchyard::server {
namespace {

constexpr size_t kMaxChoices = 10'000;

// Sets *field to the name of the field that is set.
absl::StatusOr<ConstraintSpec> SpecOf(const v1::Constraint& message, const char** field) {
  using Kind = ConstraintSpec::Kind;
  switch (message.kind_case()) {
    case v1::Constraint::kJsonObject:
      *field = "constraint.json_object";
      if (message.json_object()) return ConstraintSpec{.kind = Kind::kJsonObject};
      return rpc::BadField(*field, "must be true; for no constraint leave it out", "true", "false");
    case v1::Constraint::kJsonSchema:
      *field = "constraint.json_schema";
      return ConstraintSpec{.kind = Kind::kJsonSchema, .text = message.json_schema()};
    case v1::Constraint::kRegex:
      *field = "constraint.regex";
      return ConstraintSpec{.kind = Kind::kRegex, .text = message.regex()};
    case v1::Constraint::kGrammar:
      *field = "constraint.grammar";
      return ConstraintSpec{.kind = Kind::kGrammar, .text = message.grammar()};
    case v1::Constraint::kChoice: {
      *field = "constraint.choice";
      const auto& texts = message.choice().texts();
      RETURN_IF_ERROR(CheckCount("constraint.choice.texts", texts.size(), "texts", kMaxChoices));
      if (texts.empty()) return rpc::BadField("constraint.choice.texts", "at least one is needed", "1", "0");
      return ConstraintSpec{.kind = Kind::kChoice, .choices = {texts.begin(), texts.end()}};
    }
    default:
      return rpc::BadField("constraint", "exactly one of json_object, json_schema, regex, choice, grammar required",
                           "1", "0");
  }
}

}  // namespace

absl::Status ConvertConstraint(const v1::GenerateRequest& message, const ConvertArgs& args, InferenceRequest* out) {
  const char* own_field = "constraint";
  std::optional<ConstraintSpec> spec;
  if (message.has_constraint()) {
    ASSIGN_OR_RETURN(spec, SpecOf(message.constraint(), &own_field));
  }
  std::string field = own_field;
  if (args.output != nullptr) {
    spec = args.output->Constrain(std::move(spec));
    if (std::string name = args.output->constraint_field(); !name.empty()) field = std::move(name);
  }
  if (!spec.has_value()) return absl::OkStatus();
  if (args.constraints == nullptr || !args.text->has_tokenizer()) {
    return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_TOKENIZER,
                          absl::StrCat(field, ": this model has no tokenizer, so its outputs are no text"),
                          {{"field", field}});
  }
  absl::StatusOr<std::shared_ptr<grammar::Automaton>> made = args.constraints->Compile(*spec, args.model->vocab_size);
  if (absl::IsResourceExhausted(made.status())) return TextLimit(field.c_str(), made.status());
  if (!made.ok()) {
    return rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_FIELD,
                          absl::StrCat(field, ": ", made.status().message()), {{"field", field}});
  }
  out->constraint = *std::move(made);
  for (const int32_t id : args.model->eos_token_ids) {
    if (std::binary_search(out->sampling.stop_ids.begin(), out->sampling.stop_ids.end(), id))
      out->end_ids.push_back(id);
  }
  return absl::OkStatus();
}

}  // namespace switchyard::server
