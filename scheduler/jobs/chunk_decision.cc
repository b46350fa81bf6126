#include "scheduler/jobs/chunk_decision.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/pipeline/build_expert_parallel.h"

namespace switchyard::jobs {
namespace {

constexpr absl::string_view kWhyName = " why=";
constexpr size_t kWords = 14;  // names and values before it

absl::Status NoChunkDecision(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("chunks: \"", absl::CHexEscape(text.substr(0, 128)), "\" is no decision"));
}

}  // namespace

std::string ChunkDecision::ToString() const {
  const double ms = 1e-6 * static_cast<double>(ns);
  const std::string time = ms < 1000 ? absl::StrFormat("%.3g ms", ms) : absl::StrFormat("%.0f ms", ms);
  return absl::StrCat("after step ", step, ": ", rows, " rows in ", chunks, chunks == 1 ? " chunk" : " chunks",
                      ", some layers took ", time, why.empty() ? "" : " (", why, why.empty() ? "" : ")");
}

// `from` and `reason` have a meaning in the lines of a search only.
std::string EncodeChunkDecision(const ChunkDecision& decision) {
  return absl::StrCat("step=", decision.step, " world=", decision.world, " rows=", decision.rows,
                      " from=1 to=", decision.chunks, " ns=", decision.ns, " reason=measured", kWhyName,
                      absl::CHexEscape(decision.why), "\n");
}

absl::StatusOr<std::optional<ChunkDecision>> DecodeChunkDecision(absl::string_view lines) {
  if (lines.empty()) return std::nullopt;
  // As it was called when a formula decided.
  const std::string line = absl::StrReplaceAll(lines, {{" reason=model why=", " reason=measured why="}});
  const size_t why = absl::string_view(line).find(kWhyName);
  const std::vector<std::string> words = absl::StrSplit(line.substr(0, why), absl::ByAnyChar(" ="));
  if (why == std::string::npos || words.size() != kWords) return NoChunkDecision(lines);
  if (words.back() == "tried" || words.back() == "found") return std::nullopt;
  ChunkDecision decision;
  const absl::string_view escaped = absl::StripSuffix(absl::string_view(line).substr(why + kWhyName.size()), "\n");
  const bool read = absl::SimpleAtoi(words[1], &decision.step) && absl::SimpleAtoi(words[3], &decision.world) &&
                    absl::SimpleAtoi(words[5], &decision.rows) && absl::SimpleAtoi(words[9], &decision.chunks) &&
                    absl::SimpleAtoi(words[11], &decision.ns) && absl::CUnescape(escaped, &decision.why);
  if (!read || decision.step < 0 || decision.rows < 1 || decision.ns < 0) return NoChunkDecision(lines);
  // Names in this order, one line, and no other spelling.
  if (EncodeChunkDecision(decision) != line) return NoChunkDecision(lines);
  return decision;
}

absl::Status CheckCounts(const ChunkDecision& decision, int32_t world) {
  const auto problem = [&](auto... what) {
    return absl::FailedPreconditionError(absl::StrCat(what..., ": ", decision.ToString()));
  };
  if (decision.world != world) return problem("it is of ", decision.world, " ranks, there are ", world);
  if (decision.chunks >= 1 && decision.chunks <= pipeline::kMaxMicroBatches) return absl::OkStatus();
  return problem(decision.chunks, " chunks are outside [1, ", pipeline::kMaxMicroBatches, "]");
}

}  // namespace switchyard::jobs
