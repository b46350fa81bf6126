#include "server/text/tokenizer/tokenizer_config.h"

#include <utility>

#include "scheduler/base/status_macros.h"
#include "server/text/tokenizer/json_field.h"

namespace switchyard::tokenizer {

absl::StatusOr<std::optional<std::string>> ReadEosToken(absl::string_view json, absl::string_view name) {
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(json, name));
  const Field file(&document, name);
  RETURN_IF_ERROR(file.CheckObject());
  std::optional<std::string> eos;
  for (const absl::string_view key : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    const Field token = file[key];
    if (!token.present()) continue;
    ASSIGN_OR_RETURN(std::string text, (token.value().is_object() ? token["content"] : token).String());
    if (key == "eos_token") eos = std::move(text);
  }
  RETURN_IF_ERROR(file["tokenizer_class"].StringOr("").status());
  return eos;
}

}  // namespace switchyard::tokenizer
