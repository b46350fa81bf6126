#include "scheduler/jobs/chunk_decisions.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::jobs {
namespace {

constexpr absl::string_view kChunkReasons[] = {"tried", "found", "measured"};
constexpr absl::string_view kMeasuredText = " why=";

absl::Status NoChunkDecision(absl::string_view line) {
  return absl::InvalidArgumentError(
      absl::StrCat("chunks: \"", absl::CHexEscape(line.substr(0, 128)), "\" is no decision"));
}

absl::StatusOr<ChunkDecision> DecodeChunkDecision(absl::string_view line) {
  const size_t why = line.find(kMeasuredText);
  if (why == absl::string_view::npos) return NoChunkDecision(line);
  ChunkDecision decision;
  if (!absl::CUnescape(line.substr(why + kMeasuredText.size()), &decision.why)) return NoChunkDecision(line);
  const std::vector<absl::string_view> fields = absl::StrSplit(line.substr(0, why), ' ');
  size_t next = 0;
  const auto take = [&](absl::string_view name, auto* to) {
    absl::string_view field = next < fields.size() ? fields[next++] : absl::string_view();
    return absl::ConsumePrefix(&field, name) && absl::ConsumePrefix(&field, "=") && absl::SimpleAtoi(field, to);
  };
  if (!take("step", &decision.step) || !take("world", &decision.world) || !take("rows", &decision.rows) ||
      !take("from", &decision.from) || !take("to", &decision.to) || !take("ns", &decision.ns) ||
      fields.size() != next + 1) {
    return NoChunkDecision(line);
  }
  absl::string_view reason = fields[next];
  if (!absl::ConsumePrefix(&reason, "reason=")) return NoChunkDecision(line);
  const auto* const found = std::find(std::begin(kChunkReasons), std::end(kChunkReasons), reason);
  if (found == std::end(kChunkReasons)) return NoChunkDecision(line);
  decision.reason = static_cast<ChunkReason>(found - std::begin(kChunkReasons));
  if (decision.step < 0 || decision.rows < 1 || decision.ns < 0) return NoChunkDecision(line);
  if (EncodeChunkDecision(decision) != line) return NoChunkDecision(line);  // another spelling of the same
  return decision;
}

}  // namespace

absl::string_view ChunkReasonName(ChunkReason reason) { return kChunkReasons[static_cast<int>(reason)]; }

std::string ChunkDecision::ToString() const {
  const double ms = 1e-6 * static_cast<double>(ns);
  const std::string time = ms < 1000 ? absl::StrFormat("%.3g ms", ms) : absl::StrFormat("%.0f ms", ms);
  return absl::StrCat("after step ", step, ": chunks ", from, " -> ", to, " of ", rows, " rows, ",
                      reason == ChunkReason::kMeasured ? "some layers took " : "a step took ", time, " (",
                      ChunkReasonName(reason), why.empty() ? "" : ": ", why, ")");
}

std::string EncodeChunkDecision(const ChunkDecision& decision) {
  return absl::StrCat("step=", decision.step, " world=", decision.world, " rows=", decision.rows,
                      " from=", decision.from, " to=", decision.to, " ns=", decision.ns,
                      " reason=", ChunkReasonName(decision.reason), kMeasuredText, absl::CHexEscape(decision.why));
}

std::string EncodeChunkDecisions(absl::Span<const ChunkDecision> decisions) {
  std::string lines;
  for (const ChunkDecision& decision : decisions) absl::StrAppend(&lines, EncodeChunkDecision(decision), "\n");
  return lines;
}

absl::StatusOr<std::vector<ChunkDecision>> DecodeChunkDecisions(absl::string_view lines) {
  std::vector<ChunkDecision> decisions;
  if (lines.empty()) return decisions;
  if (!absl::ConsumeSuffix(&lines, "\n")) return NoChunkDecision(lines.substr(lines.rfind('\n') + 1));
  // As it was called when a formula decided.
  const std::string all = absl::StrReplaceAll(lines, {{" reason=model why=", " reason=measured why="}});
  for (const absl::string_view line : absl::StrSplit(all, '\n')) {
    ASSIGN_OR_RETURN(decisions.emplace_back(), DecodeChunkDecision(line));
  }
  return decisions;
}

ChunkController::ChunkController(const ChunkOptions& options)
    : options_(options), search_(options.least, options.most) {
  SY_CHECK_GE(options.world, 1);
  SY_CHECK_GE(options.steps, int64_t{1});
}

int32_t ChunkController::ChunksFor(int64_t rows) const {
  return options_.searches ? search_.Next(rows).chunks : std::max(measured_, 1);
}

void ChunkController::AddStep(int64_t rows, int64_t ns) {
  SY_CHECK(options_.searches);
  last_rows_ = rows;
  if (!to_replay_.empty() || search_.Next(rows).found) return;
  std::vector<int64_t>& steps = steps_[rows];
  steps.push_back(steps.empty() ? -1 : ns);
}

bool ChunkController::Decides(int64_t step) const {
  if (!to_replay_.empty()) return Predicts(step);
  if (!options_.searches) return measured_ == 0;
  const auto steps = steps_.find(last_rows_);
  return steps != steps_.end() && static_cast<int64_t>(steps->second.size()) > options_.steps;
}

int64_t ChunkController::MedianNs() const {
  std::vector<int64_t> counted = steps_.at(last_rows_);
  counted.erase(counted.begin());
  std::nth_element(counted.begin(), counted.begin() + std::ssize(counted) / 2, counted.end());
  return counted[counted.size() / 2];
}

ChunkDecision ChunkController::Propose(int64_t step, int64_t ns) const {
  SY_CHECK(Decides(step));
  if (Predicts(step)) return to_replay_.front();
  SY_CHECK(options_.searches);
  ChunkSearch after = search_;
  after.Record(last_rows_, ns);
  const ChunkSearch::Answer next = after.Next(last_rows_);
  return {.step = step,
          .world = options_.world,
          .rows = last_rows_,
          .from = ChunksFor(last_rows_),
          .to = next.chunks,
          .ns = ns,
          .reason = next.found ? ChunkReason::kFound : ChunkReason::kTried};
}

absl::Status ChunkController::Follows(const ChunkDecision& decision) const {
  const auto wrong = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat("chunks: \"", decision.ToString(), "\" ", problem));
  };
  if (!decisions_.empty() && decision.step <= decisions_.back().step) return wrong("is not behind the one before it");
  if (decision.world != options_.world) return wrong(absl::StrCat("is not of ", options_.world, " ranks"));
  if (decision.from != ChunksFor(decision.rows)) {
    return wrong(absl::StrCat("does not follow from ", ChunksFor(decision.rows), " chunks"));
  }
  if (!options_.searches) {
    if (decision.reason != ChunkReason::kMeasured || measured_ != 0)
      return wrong("is not the only one that was measured");
    if (decision.to < 1 || decision.to > options_.most) {
      return wrong(absl::StrCat("has no number of chunks in [1, ", options_.most, "]"));
    }
    return absl::OkStatus();
  }
  if (search_.Next(decision.rows).found) return wrong("follows the end of its search");
  ChunkSearch after = search_;
  after.Record(decision.rows, decision.ns);
  const ChunkSearch::Answer next = after.Next(decision.rows);
  const ChunkReason reason = next.found ? ChunkReason::kFound : ChunkReason::kTried;
  if (next.chunks == decision.to && reason == decision.reason) return absl::OkStatus();
  return wrong(absl::StrCat("is not what the search says: ", next.chunks, ", ", ChunkReasonName(reason)));
}

void ChunkController::Adopt(const ChunkDecision& decision) {
  SY_CHECK_OK(Follows(decision));
  if (!to_replay_.empty()) {
    SY_CHECK(decision == to_replay_.front());
    to_replay_.erase(to_replay_.begin());
  }
  if (options_.searches) search_.Record(decision.rows, decision.ns);
  if (!options_.searches) measured_ = decision.to;
  steps_.erase(decision.rows);
  decisions_.push_back(decision);
}

absl::Status ChunkController::Replay(absl::Span<const ChunkDecision> journal, int64_t step) {
  SY_CHECK(decisions_.empty() && to_replay_.empty());
  ChunkController past(options_);  // what this would have gone through
  for (const ChunkDecision& each : journal) {
    if (each.world != options_.world) {
      return absl::FailedPreconditionError(absl::StrCat("chunks: a decision for ", each.world, " ranks, there are ",
                                                        options_.world, ": ", each.ToString()));
    }
    RETURN_IF_ERROR(past.Follows(each));
    past.Adopt(each);
  }
  for (const ChunkDecision& each : journal) {
    if (each.step > step) break;
    Adopt(each);
  }
  to_replay_.assign(journal.begin() + static_cast<ptrdiff_t>(decisions_.size()), journal.end());
  return absl::OkStatus();
}

}  // namespace switchyard::jobs
