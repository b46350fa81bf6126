// The low-rank adapters (LoRA) that a model is served with beside each other: --adapters=NAME=DIR,NAME=DIR, of the
// server and of its workers.  Plain data.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::fleet {

inline constexpr size_t kMaxAdapters = 256;
inline constexpr size_t kMaxAdapterNameBytes = 64;

struct AdapterPlace {
  std::string name;  // requests ask for "MODEL:name"
  std::string dir;   // as PEFT saves it

  bool operator==(const AdapterPlace& other) const = default;
};

// Parses the flag's value; empty: none.  InvalidArgument: a part that is no NAME=DIR, and what CheckAdapterNames says.
absl::StatusOr<std::vector<AdapterPlace>> ParseAdapterList(absl::string_view text);

// InvalidArgument, with limit and actual: more than kMaxAdapters names, one of no or more than kMaxAdapterNameBytes
// bytes or of other characters than letters, digits, '.', '_' and '-', or the same one twice.
absl::Status CheckAdapterNames(absl::Span<const std::string> names);

}  // namespace switchyard::fleet
