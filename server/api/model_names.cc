#include "server/api/model_names.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"

namespace switchyard::server {

std::string ModelName(const ServedModel& model, int32_t adapter) {
  if (adapter == 0) return model.name;
  return absl::StrCat(model.name, ":", model.adapters[static_cast<size_t>(adapter) - 1]);
}

absl::Status UnknownModel(const std::string& name, const ServedModel& model) {
  constexpr int32_t kMostNamed = 16;
  const auto count = static_cast<int32_t>(model.adapters.size());
  std::string names;
  for (int32_t adapter = 0; adapter <= std::min(count, kMostNamed); ++adapter) {
    absl::StrAppend(&names, adapter > 0 ? ", " : "", "\"", ModelName(model, adapter), "\"");
  }
  if (count > kMostNamed) absl::StrAppend(&names, " and ", count - kMostNamed, " more");
  return rpc::MakeError(absl::StatusCode::kNotFound, v1::MODEL_NOT_FOUND,
                        absl::StrCat("model ", Quote(name), " is not served here; this server has ", names),
                        {{"field", "model"}});
}

absl::StatusOr<int32_t> FindAdapter(const std::string& name, const ServedModel& model) {
  if (name.empty()) return 0;
  for (int32_t adapter = 0; adapter <= static_cast<int32_t>(model.adapters.size()); ++adapter) {
    if (name == ModelName(model, adapter)) return adapter;
  }
  return UnknownModel(name, model);
}

}  // namespace switchyard::server
