#include "workers/serving/weight_agreement.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"
#include "workers/checkpoint/gguf/gguf_weights.h"
#include "workers/model/config/config.h"

namespace switchyard::worker {
namespace {

// The store takes values up to 1 MiB; of more tensors the first are enough to name one that differs, or none.
constexpr size_t kMostBytes = 1 << 20;

// "SUM NAME" lines.
std::string Encode(const model::TensorSums& sums, size_t most_bytes) {
  std::string text;
  for (const auto& [name, sum] : sums) {
    const std::string line = absl::StrCat(absl::Hex(sum, absl::kZeroPad16), " ", name, "\n");
    if (text.size() + line.size() > most_bytes) break;
    text += line;
  }
  return text;
}

absl::StatusOr<model::TensorSums> Decode(absl::string_view text) {
  model::TensorSums sums;
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

constexpr char kNone[] = "none";

std::string SumOf(const model::TensorSums& sums) {
  return sums.empty() ? kNone : absl::StrCat(absl::Hex(Fnv1a(Encode(sums, SIZE_MAX)), absl::kZeroPad16));
}

// Whether two ranks published the same: the sum of what every rank has, and that of the expert file.
bool Agree(const std::string& a, const std::string& b) {
  const std::pair<std::string, std::string> mine = absl::StrSplit(a, ' '), theirs = absl::StrSplit(b, ' ');
  return mine.first == theirs.first && (mine.second == theirs.second || mine.second == kNone || theirs.second == kNone);
}

// "tensor "a" and 3 others differ"; says so where no tensor that both ranks have differs.
std::string Difference(const model::TensorSums& mine, const model::TensorSums& theirs) {
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

absl::StatusOr<uint64_t> SumConfig(const std::string& model_dir) {
  ASSIGN_OR_RETURN(const ModelDir dir, checkpoint::OpenModelFiles(model_dir));
  ASSIGN_OR_RETURN(const std::string text, dir.ReadSmallFile("config.json", model::kMaxConfigBytes));
  nlohmann::json config;
  ASSIGN_OR_RETURN(config, ParseStrictJson("config.json", text, {.max_depth = model::kMaxConfigDepth}));
  if (config.is_object()) config.erase("transformers_version");
  return Fnv1a(config.dump());
}

absl::Status AgreeOnWeights(int rank, int world, const model::TensorSums& mine, const model::TensorSums& experts,
                            comm::RendezvousStore* store, absl::Time deadline) {
  if (world == 1) return absl::OkStatus();
  const std::string own = absl::StrCat(SumOf(mine), " ", SumOf(experts));
  std::vector<std::string> all;
  ASSIGN_OR_RETURN(all, comm::ExchangeValues(store, "weights", rank, world, own, deadline));
  int other = 0;
  while (other < world && Agree(all[static_cast<size_t>(other)], own)) ++other;
  if (other == world) return absl::OkStatus();
  // A rank that differs from this one finds it, too, and publishes its sums.
  model::TensorSums everything = mine;
  everything.insert(experts.begin(), experts.end());
  RETURN_IF_ERROR(store->Set(absl::StrCat("tensors/", rank), Encode(everything, kMostBytes)));
  ASSIGN_OR_RETURN(all, store->Get({absl::StrCat("tensors/", other)}, deadline));
  ASSIGN_OR_RETURN(const model::TensorSums theirs, Decode(all[0]));
  return absl::DataLossError(absl::StrCat(
      "ranks ", rank, " and ", other, " of ", world, " have loaded different weights: ", Difference(everything, theirs),
      "; the --model of one of them is damaged or of another version: copy it anew"));
}

}  // namespace switchyard::worker
