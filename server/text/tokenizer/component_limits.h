// What every component of tokenizer.json is checked for before its type is looked at.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/tokenizer/json_reader.h"

namespace switchyard::tokenizer {

inline constexpr int kMaxComponentDepth = 16;      // Sequences inside Sequences; the wild has two
inline constexpr size_t kMaxSequenceLength = 256;  // components of one Sequence

inline absl::Status CheckComponent(const Field& field, int depth) {
  if (depth > kMaxComponentDepth) {
    return field.Error(absl::StrCat("components are nested deeper than ", kMaxComponentDepth));
  }
  return field.CheckObject();
}

// For the list of a Sequence.
inline absl::Status CheckSequence(const Field& list) {
  RETURN_IF_ERROR(list.CheckArray());
  if (list.size() <= kMaxSequenceLength) return absl::OkStatus();
  return list.Expected(absl::StrCat("at most ", kMaxSequenceLength, " components"));
}

}  // namespace switchyard::tokenizer
