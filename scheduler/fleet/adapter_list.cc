#include "scheduler/fleet/adapter_list.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"

namespace switchyard::fleet {
namespace {

bool IsNameByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

absl::Status CheckName(const std::string& name) {
  if (name.empty() || name.size() > kMaxAdapterNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("adapter name ", Quote(name), ": ", name.size(),
                                                   " bytes, must be within [1, ", kMaxAdapterNameBytes, "]"));
  }
  if (std::all_of(name.begin(), name.end(), IsNameByte)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("adapter name ", Quote(name), ": must be of letters, digits, '.', '_' and '-'"));
}

}  // namespace

absl::Status CheckAdapterNames(absl::Span<const std::string> names) {
  if (names.size() > kMaxAdapters) {
    return absl::InvalidArgumentError(absl::StrCat(names.size(), " adapters, limit ", kMaxAdapters));
  }
  absl::flat_hash_set<absl::string_view> seen;
  for (const std::string& name : names) {
    RETURN_IF_ERROR(CheckName(name));
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("adapter name ", Quote(name), ": is there twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AdapterPlace>> ParseAdapterList(absl::string_view text) {
  std::vector<AdapterPlace> places;
  std::vector<std::string> names;
  if (text.empty()) return places;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> both = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (both.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(Quote(part), ": is no NAME=DIR"));
    }
    names.emplace_back(both.first);
    places.push_back({.name = names.back(), .dir = std::string(both.second)});
  }
  RETURN_IF_ERROR(CheckAdapterNames(names));
  return places;
}

}  // namespace switchyard::fleet
