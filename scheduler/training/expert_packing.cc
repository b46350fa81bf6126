#include "scheduler/training/expert_packing.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

constexpr absl::string_view kReasons[] = {"grows", "covered", "ranks", "refused"};
constexpr absl::string_view kWhy = " why=";

absl::Status NoDecision(absl::string_view line) {
  return absl::InvalidArgumentError(
      absl::StrCat("packing: \"", absl::CHexEscape(line.substr(0, 128)), "\" is no decision"));
}

absl::Status Wrong(const PackingDecision& decision, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("packing: \"", decision.ToString(), "\" ", problem));
}

}  // namespace

absl::string_view PackingReasonName(PackingReason reason) { return kReasons[static_cast<int>(reason)]; }

std::string PackingDecision::ToString() const {
  const auto ms = [&](int64_t ns, int64_t ops) {
    return ops == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(ops) * 1e-6;
  };
  return absl::StrFormat(
      "after step %d: packing %d -> %d of %d ranks, all-to-all %.3g ms, experts %.3g ms a micro-op (%s%s)", step, from,
      to, world, ms(times.all_to_all_ns, 2 * times.micro_ops), ms(times.experts_ns, times.micro_ops),
      PackingReasonName(reason), why.empty() ? "" : absl::StrCat(": ", why));
}

bool PackingDecision::operator==(const PackingDecision& other) const {
  return EncodePackingDecision(*this) == EncodePackingDecision(other);
}

std::string EncodePackingDecision(const PackingDecision& decision) {
  return absl::StrCat("step=", decision.step, " world=", decision.world, " from=", decision.from, " to=", decision.to,
                      " experts_ns=", decision.times.experts_ns, " all_to_all_ns=", decision.times.all_to_all_ns,
                      " micro_ops=", decision.times.micro_ops, " reason=", PackingReasonName(decision.reason), kWhy,
                      absl::CHexEscape(decision.why));
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
      fields.size() != next + 1) {
    return NoDecision(line);
  }
  absl::string_view reason = fields[next];
  if (!absl::ConsumePrefix(&reason, "reason=")) return NoDecision(line);
  const auto* const found = std::find(std::begin(kReasons), std::end(kReasons), reason);
  if (found == std::end(kReasons)) return NoDecision(line);
  decision.reason = static_cast<PackingReason>(found - std::begin(kReasons));
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

PackingController::PackingController(const PackingOptions& options) : options_(options) {
  SY_CHECK_GE(options.world, 1);
  SY_CHECK_GE(options.first_step, int64_t{1});
  SY_CHECK_GE(options.every_steps, int64_t{1});
  SY_CHECK_GE(options.most, 1);
}

bool PackingController::MayDouble() const {
  return packing_ <= options_.most / 2 && packing_ <= MostPacking(options_.world) / 2;
}

bool PackingController::Decides(int64_t step) const {
  const int64_t since = step - options_.first_step;
  const bool behind = decisions_.empty() || step > decisions_.back().step;
  return !settled_ && behind && since >= 0 && since % options_.every_steps == 0;
}

bool PackingController::Measures(int64_t step) const {
  return !settled_ && step > options_.first_step - options_.every_steps;
}

PackingDecision PackingController::Propose(int64_t step, const PackingTimes& times) const {
  SY_CHECK(Decides(step));
  for (const PackingDecision& each : foreseen_) {
    if (each.step == step) return each;
  }
  PackingDecision decision = {.step = step, .world = options_.world, .from = packing_, .to = packing_, .times = times};
  // Two all-to-alls a micro-op; in a form that does not overflow.
  if (times.experts_ns >= times.all_to_all_ns - times.experts_ns) {
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
  packing_ = decision.to;
  settled_ = decision.reason != PackingReason::kGrows;
  decisions_.push_back(decision);
}

absl::Status PackingController::Replay(absl::Span<const PackingDecision> journal, int64_t step) {
  SY_CHECK(decisions_.empty());
  // What this would have gone through.
  PackingController past(options_);
  for (const PackingDecision& each : journal) {
    if (each.world != options_.world) {
      return absl::FailedPreconditionError(absl::StrCat("packing: a decision for ", each.world, " ranks, there are ",
                                                        options_.world, ": ", each.ToString()));
    }
    if (!past.Decides(each.step)) return Wrong(each, "was not to be decided then");
    const bool grows = each.reason == PackingReason::kGrows;
    if (each.from != past.packing_ || each.to != (grows ? 2 * each.from : each.from)) {
      return Wrong(each, absl::StrCat("does not follow from packing ", past.packing_));
    }
    if (grows && !past.MayDouble()) return Wrong(each, "is more than the ranks allow");
    past.Adopt(each);
  }
  for (const PackingDecision& each : journal) {
    if (each.step > step) {
      foreseen_.push_back(each);
    } else {
      Adopt(each);
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard
