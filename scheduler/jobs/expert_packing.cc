#include "scheduler/jobs/expert_packing.h"

#include <algorithm>
#include <iterator>

#include "absl/numeric/int128.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::jobs {
namespace {

constexpr absl::string_view kReasons[] = {"grows", "covered", "ranks", "refused", "undone"};
constexpr absl::string_view kWhy = " why=";
constexpr absl::string_view kRange = " least_step_ns=";  // lines without are of versions that did not have it

absl::Status NoDecision(absl::string_view line) {
  return absl::InvalidArgumentError(
      absl::StrCat("packing: \"", absl::CHexEscape(line.substr(0, 128)), "\" is no decision"));
}

absl::Status Wrong(const PackingDecision& decision, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("packing: \"", decision.ToString(), "\" ", problem));
}

// "3.25 ms", "1234 ms".
std::string MsOf(int64_t ns, int64_t of) {
  const double ms = of == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(of) * 1e-6;
  return ms < 1000 ? absl::StrFormat("%.3g ms", ms) : absl::StrFormat("%.0f ms", ms);
}

// " (88 ms to 93 ms)"; empty: not known, or of one step.
std::string RangeOf(const PackingTimes& times, int32_t world) {
  if (times.most_step_ns == times.least_step_ns) return "";
  return absl::StrCat(" (", MsOf(times.least_step_ns, world), " to ", MsOf(times.most_step_ns, world), ")");
}

}  // namespace

PackingTimes& PackingTimes::operator+=(const PackingTimes& other) {
  experts_ns += other.experts_ns;
  all_to_all_ns += other.all_to_all_ns;
  micro_ops += other.micro_ops;
  step_ns += other.step_ns;
  sums_ns += other.sums_ns;
  least_step_ns = steps == 0 ? other.least_step_ns : std::min(least_step_ns, other.least_step_ns);
  most_step_ns = std::max(most_step_ns, other.most_step_ns);
  steps += other.steps;
  return *this;
}

absl::string_view PackingReasonName(PackingReason reason) { return kReasons[static_cast<int>(reason)]; }

std::string PackingDecision::ToString() const {
  std::string of_step;
  if (times.steps > 0) {
    absl::StrAppend(&of_step, ", a step ", MsOf(times.step_ns, times.steps), RangeOf(times, world), ", ",
                    MsOf(times.sums_ns, times.steps), " of it waiting for sums");
  }
  return absl::StrFormat("after step %d: packing %d -> %d of %d ranks, all-to-all %s, experts %s a micro-op%s (%s%s)",
                         step, from, to, world, MsOf(times.all_to_all_ns, 2 * times.micro_ops),
                         MsOf(times.experts_ns, times.micro_ops), of_step, PackingReasonName(reason),
                         why.empty() ? "" : absl::StrCat(": ", why));
}

bool PackingDecision::operator==(const PackingDecision& other) const {
  return EncodePackingDecision(*this) == EncodePackingDecision(other);
}

std::string EncodePackingDecision(const PackingDecision& decision) {
  return absl::StrCat("step=", decision.step, " world=", decision.world, " from=", decision.from, " to=", decision.to,
                      " experts_ns=", decision.times.experts_ns, " all_to_all_ns=", decision.times.all_to_all_ns,
                      " micro_ops=", decision.times.micro_ops, " step_ns=", decision.times.step_ns,
                      " sums_ns=", decision.times.sums_ns, " steps=", decision.times.steps,
                      decision.times.most_step_ns == 0 ? ""
                                                       : absl::StrCat(kRange, decision.times.least_step_ns,
                                                                      " most_step_ns=", decision.times.most_step_ns),
                      " reason=", PackingReasonName(decision.reason), kWhy, absl::CHexEscape(decision.why));
}

absl::StatusOr<PackingDecision> DecodePackingDecision(absl::string_view line) {
  const size_t why = line.find(kWhy);
  if (why == absl::string_view::npos) return NoDecision(line);
  PackingDecision decision;
  if (!absl::CUnescape(line.substr(why + kWhy.size()), &decision.why)) return NoDecision(line);
  const std::vector<absl::string_view> fields = absl::StrSplit(line.substr(0, why), ' ');
  size_t next = 0;
  const auto take = [&](absl::string_view name, auto* to) {
    absl::string_view field = next < fields.size() ? fields[next++] : absl::string_view();
    return absl::ConsumePrefix(&field, name) && absl::ConsumePrefix(&field, "=") && absl::SimpleAtoi(field, to);
  };
  PackingTimes& times = decision.times;
  if (!take("step", &decision.step) || !take("world", &decision.world) || !take("from", &decision.from) ||
      !take("to", &decision.to) || !take("experts_ns", &times.experts_ns) ||
      !take("all_to_all_ns", &times.all_to_all_ns) || !take("micro_ops", &times.micro_ops) ||
      !take("step_ns", &times.step_ns) || !take("sums_ns", &times.sums_ns) || !take("steps", &times.steps)) {
    return NoDecision(line);
  }
  if (absl::StrContains(line.substr(0, why), kRange) &&
      (!take("least_step_ns", &times.least_step_ns) || !take("most_step_ns", &times.most_step_ns))) {
    return NoDecision(line);
  }
  if (fields.size() != next + 1) return NoDecision(line);
  absl::string_view reason = fields[next];
  if (!absl::ConsumePrefix(&reason, "reason=")) return NoDecision(line);
  const auto* const found = std::find(std::begin(kReasons), std::end(kReasons), reason);
  if (found == std::end(kReasons)) return NoDecision(line);
  decision.reason = static_cast<PackingReason>(found - std::begin(kReasons));
  for (const int64_t each : {times.experts_ns, times.all_to_all_ns, times.micro_ops, times.step_ns, times.sums_ns,
                             times.steps, times.least_step_ns, times.most_step_ns, decision.step}) {
    if (each < 0 || each > INT64_MAX / 2) return NoDecision(line);
  }
  if (EncodePackingDecision(decision) != line) return NoDecision(line);  // another spelling of the same
  return decision;
}

std::string EncodePackingDecisions(absl::Span<const PackingDecision> decisions) {
  std::string lines;
  for (const PackingDecision& decision : decisions) absl::StrAppend(&lines, EncodePackingDecision(decision), "\n");
  return lines;
}

absl::StatusOr<std::vector<PackingDecision>> DecodePackingDecisions(absl::string_view lines) {
  std::vector<PackingDecision> decisions;
  if (lines.empty()) return decisions;
  if (!absl::ConsumeSuffix(&lines, "\n")) return NoDecision(lines.substr(lines.rfind('\n') + 1));
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    ASSIGN_OR_RETURN(decisions.emplace_back(), DecodePackingDecision(line));
  }
  return decisions;
}

int32_t MostPacking(int32_t world) {
  SY_CHECK_GE(world, 1);
  return world & -world;
}

PackingController::PackingController(const PackingOptions& options) : options_(options), packing_(options.begin) {
  SY_CHECK_GE(options.world, 1);
  SY_CHECK_GE(options.begin, 1);
  SY_CHECK_GE(options.first_step, int64_t{1});
  SY_CHECK_GE(options.every_steps, int64_t{1});
  SY_CHECK_GE(options.most, 1);
}

bool PackingController::MayDouble() const {
  return packing_ <= options_.most / 2 && packing_ <= MostPacking(options_.world) / 2;
}

bool PackingController::Decides(int64_t step) const {
  if (!to_replay_.empty()) return Predicts(step);
  const int64_t since = step - options_.first_step;
  const bool behind = decisions_.empty() || step > decisions_.back().step;
  const bool measured = begun_ == 0 || step - begun_ >= options_.every_steps;
  return !finalized_ && behind && measured && since >= 0 && since % options_.every_steps == 0;
}

bool PackingController::Measures(int64_t step) const {
  if (finalized_ || step <= options_.first_step - options_.every_steps) return false;
  const bool changed = !decisions_.empty() && decisions_.back().to != decisions_.back().from;
  const int64_t anew = std::max(begun_, changed ? decisions_.back().step : 0);
  return anew == 0 || step != anew + 1 || options_.every_steps == 1;
}

bool PackingController::WasInVain(const PackingTimes& times) const {
  if (decisions_.empty() || decisions_.back().reason != PackingReason::kGrows) return false;
  const PackingTimes& before = decisions_.back().times;
  if (before.steps == 0 || times.steps == 0) return false;
  if (before.most_step_ns > 0 && times.most_step_ns > 0) return times.most_step_ns >= before.least_step_ns;
  return absl::int128(times.step_ns) * before.steps >= absl::int128(before.step_ns) * times.steps;
}

PackingDecision PackingController::Propose(int64_t step, const PackingTimes& times) const {
  SY_CHECK(Decides(step));
  if (Predicts(step)) return to_replay_.front();
  PackingDecision decision = {.step = step, .world = options_.world, .from = packing_, .to = packing_, .times = times};
  if (WasInVain(times)) {
    const PackingTimes& before = decisions_.back().times;
    decision.reason = PackingReason::kUndone;
    decision.to = packing_ / 2;
    decision.why = absl::StrCat("a step took ", MsOf(before.step_ns, before.steps), RangeOf(before, options_.world),
                                " with packing ", decision.to);
  } else if (times.experts_ns >= times.all_to_all_ns - times.experts_ns) {
    // Two all-to-alls a micro-op; in a form that does not overflow.
    decision.reason = PackingReason::kCovered;
  } else if (!MayDouble()) {
    decision.reason = PackingReason::kRanks;
  } else {
    decision.reason = PackingReason::kGrows;
    decision.to = 2 * packing_;
  }
  return decision;
}

PackingDecision PackingController::Refused(PackingDecision proposal, absl::string_view why) {
  proposal.to = proposal.from;
  proposal.reason = PackingReason::kRefused;
  proposal.why = std::string(why);
  return proposal;
}

void PackingController::Adopt(const PackingDecision& decision) {
  SY_CHECK(Decides(decision.step));
  SY_CHECK_EQ(decision.from, packing_);
  if (!to_replay_.empty()) {
    SY_CHECK(decision == to_replay_.front());
    to_replay_.erase(to_replay_.begin());
  }
  packing_ = decision.to;
  finalized_ = decision.reason != PackingReason::kGrows;
  decisions_.push_back(decision);
}

// Whether this controller could have made the decision.
absl::Status PackingController::CheckFollows(const PackingDecision& decision) const {
  if (!Decides(decision.step)) return Wrong(decision, "was not to be decided then");
  int32_t to = packing_;
  if (decision.reason == PackingReason::kGrows) {
    if (!MayDouble()) return Wrong(decision, "is more than the ranks allow");
    to = 2 * packing_;
  } else if (decision.reason == PackingReason::kUndone) {
    if (decisions_.empty()) return Wrong(decision, "follows no doubling");  // any decision before it was one
    to = packing_ / 2;
  }
  if (decision.from == packing_ && decision.to == to) return absl::OkStatus();
  return Wrong(decision, absl::StrCat("does not follow from packing ", packing_));
}

absl::Status PackingController::Replay(absl::Span<const PackingDecision> journal, int64_t step) {
  SY_CHECK(decisions_.empty());
  PackingController past(options_);  // what this would have gone through
  for (const PackingDecision& each : journal) {
    if (each.world != options_.world) {
      return absl::FailedPreconditionError(absl::StrCat("packing: a decision for ", each.world, " ranks, there are ",
                                                        options_.world, ": ", each.ToString()));
    }
    RETURN_IF_ERROR(past.CheckFollows(each));
    past.Adopt(each);
  }
  begun_ = 0;  // what was decided before was
  for (const PackingDecision& each : journal) {
    if (each.step <= step) Adopt(each);
  }
  to_replay_.assign(journal.begin() + static_cast<ptrdiff_t>(decisions_.size()), journal.end());
  begun_ = step;
  return absl::OkStatus();
}

}  // namespace switchyard::jobs
