// Reads components of tokenizer.json (normalizers, pre-tokenizers, post-processors, decoders): checks their limits and
// calls the table's reader for the component's `type`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/status_macros.h"
#include "server/text/tokenizer/json_field.h"

namespace switchyard::tokenizer {

inline constexpr int kMaxComponentDepth = 16;      // Sequences inside Sequences; published files have two
inline constexpr size_t kMaxSequenceLength = 256;  // components of one Sequence

// Reads one type of component.  `depth` counts the enclosing Sequences; all readers of a table get the same context.
template <class Component, class... Context>
using ComponentReader = absl::StatusOr<Component> (*)(const Field& field, int depth, Context... context);

template <class Component, size_t kCount, class... Context>
absl::StatusOr<Component> ReadComponent(
    const std::pair<absl::string_view, ComponentReader<Component, Context...>> (&readers)[kCount], const Field& field,
    int depth, Context... context) {
  if (depth > kMaxComponentDepth) {
    return field.Error(absl::StrCat("components are nested deeper than ", kMaxComponentDepth));
  }
  RETURN_IF_ERROR(field.CheckObject());
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  std::string types;
  for (size_t i = 0; i < kCount; ++i) {
    if (type == readers[i].first) return readers[i].second(field, depth, context...);
    absl::StrAppend(&types, i == 0 ? "" : i + 1 < kCount ? ", " : " or ", readers[i].first);
  }
  return field["type"].Expected(types);
}

// Reads the parts of a Sequence at `depth`.
template <class Component, class... Context>
absl::StatusOr<std::vector<Component>> ReadParts(const Field& list, int depth,
                                                 ComponentReader<Component, Context...> read, Context... context) {
  RETURN_IF_ERROR(list.CheckArray());
  if (list.size() > kMaxSequenceLength) {
    return list.Expected(absl::StrCat("at most ", kMaxSequenceLength, " components"));
  }
  std::vector<Component> parts;
  for (size_t i = 0; i < list.size(); ++i) {
    ASSIGN_OR_RETURN(Component part, read(list.at(i), depth + 1, context...));
    parts.push_back(std::move(part));
  }
  return parts;
}

// Reads the prepend_scheme of a Metaspace: first, never or always.  Older files have add_prefix_space instead.
inline absl::StatusOr<std::string> ReadPrependScheme(const Field& field) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, field["add_prefix_space"].BoolOr(true));
  ASSIGN_OR_RETURN(std::string scheme, field["prepend_scheme"].StringOr(add_prefix_space ? "always" : "never"));
  if (scheme == "first" || scheme == "never" || scheme == "always") return scheme;
  return field["prepend_scheme"].Expected("first, never or always");
}

}  // namespace switchyard::tokenizer
