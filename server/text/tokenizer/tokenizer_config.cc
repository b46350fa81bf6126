#include "server/text/tokenizer/tokenizer_config.h"

#include "scheduler/base/status_macros.h"
#include "server/text/tokenizer/json_reader.h"

namespace switchyard::tokenizer {
namespace {

absl::StatusOr<std::optional<std::string>> ParseToken(const Field& field) {
  if (!field.present()) return std::optional<std::string>();
  ASSIGN_OR_RETURN(std::string token, (field.value().is_object() ? field["content"] : field).String());
  return std::optional<std::string>(std::move(token));
}

}  // namespace

absl::StatusOr<TokenizerConfig> TokenizerConfig::FromJson(absl::string_view json, absl::string_view name) {
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(json, name));
  const Field file(&document, name);
  RETURN_IF_ERROR(file.CheckObject());
  TokenizerConfig config;
  ASSIGN_OR_RETURN(config.bos_token, ParseToken(file["bos_token"]));
  ASSIGN_OR_RETURN(config.eos_token, ParseToken(file["eos_token"]));
  ASSIGN_OR_RETURN(config.pad_token, ParseToken(file["pad_token"]));
  ASSIGN_OR_RETURN(config.unk_token, ParseToken(file["unk_token"]));
  ASSIGN_OR_RETURN(config.tokenizer_class, file["tokenizer_class"].StringOr(""));
  return config;
}

}  // namespace switchyard::tokenizer
