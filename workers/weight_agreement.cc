#include "workers/weight_agreement.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/fnv1a.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/strict_json.h"

namespace switchyard {
namespace {

// The store takes values up to 1 MiB; of more tensors the first are enough to name one that differs, or none.
constexpr size_t kMostBytes = 1 << 20;

std::string KeyOf(const char* what, int rank) { return absl::StrCat(what, "/", rank); }

// "SUM NAME" lines.
std::string Encode(const TensorSums& sums, size_t most_bytes) {
  std::string text;
  for (const auto& [name, sum] : sums) {
    const std::string line = absl::StrCat(absl::Hex(sum, absl::kZeroPad16), " ", name, "\n");
    if (text.size() + line.size() > most_bytes) break;
    text += line;
  }
  return text;
}

absl::StatusOr<TensorSums> Decode(absl::string_view text) {
  TensorSums sums;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    uint64_t sum = 0;
    if (words.size() != 2 || !absl::SimpleHexAtoi(words[0], &sum)) {
      return absl::InvalidArgumentError("sums of a rank's weights: no sum and name in a line");
    }
    sums[words[1]] = sum;
  }
  return sums;
}

// "tensor "a" and 3 others differ"; where none of those that both have does, that.
std::string Difference(const TensorSums& mine, const TensorSums& theirs) {
  std::string first;
  int64_t others = 0;
  for (const auto& [name, sum] : mine) {
    const auto at = theirs.find(name);
    if (at == theirs.end() || at->second == sum) continue;
    if (!first.empty()) {
      ++others;
    } else {
      first = Excerpt(name);
    }
  }
  if (first.empty()) return "they have not the same tensors";
  if (others == 0) return absl::StrCat("\"", first, "\" differs");
  return absl::StrCat("\"", first, "\" and ", others, others == 1 ? " other differ" : " others differ");
}

}  // namespace

absl::Status AgreeOnWeights(int rank, int world, const TensorSums& mine, RendezvousStore* store, absl::Time deadline) {
  if (world == 1) return absl::OkStatus();
  const std::string own = absl::StrCat(absl::Hex(Fnv1a(Encode(mine, SIZE_MAX)), absl::kZeroPad16));
  std::vector<std::string> keys, all;
  for (int r = 0; r < world; ++r) keys.push_back(KeyOf("weights", r));
  RETURN_IF_ERROR(store->Set(keys[static_cast<size_t>(rank)], own));
  ASSIGN_OR_RETURN(all, store->Get(keys, deadline));
  int other = 0;
  while (other < world && all[static_cast<size_t>(other)] == own) ++other;
  if (other == world) return absl::OkStatus();
  // If two ranks differ, each one differs from some: all come here.
  RETURN_IF_ERROR(store->Set(KeyOf("tensors", rank), Encode(mine, kMostBytes)));
  ASSIGN_OR_RETURN(all, store->Get({KeyOf("tensors", other)}, deadline));
  ASSIGN_OR_RETURN(const TensorSums theirs, Decode(all[0]));
  return absl::DataLossError(absl::StrCat(
      "ranks ", rank, " and ", other, " of ", world, " have loaded different weights: ", Difference(mine, theirs),
      "; the --model of one of them is damaged or of another version: copy it anew"));
}

}  // namespace switchyard
