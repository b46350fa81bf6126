#include "server/observe/request_record.h"

#include <algorithm>

namespace switchyard::server {

absl::string_view OutcomeOf(const RequestRecord& record) {
  if (record.code == "CANCELLED") return "abort";
  if (record.code != "OK") return "error";
  absl::string_view outcome = "stop";
  for (const ChoiceRecord& choice : record.choices) {
    if (choice.reason == batching::FinishReason::kAbort) return "abort";
    if (choice.reason == batching::FinishReason::kLength) outcome = "length";
  }
  return outcome;
}

RequestTotals TotalsOf(const RequestRecord& record) {
  RequestTotals totals;
  absl::Time queued = absl::InfiniteFuture(), scheduled = absl::InfiniteFuture(), first = absl::InfiniteFuture();
  absl::Time last = absl::InfinitePast(), finished = absl::InfinitePast();
  const auto earlier = [](absl::Time* earliest, absl::Time time) {
    if (time != absl::InfinitePast()) *earliest = std::min(*earliest, time);
  };
  for (const ChoiceRecord& choice : record.choices) {
    if (choice.choice == 0) totals.cached_tokens += choice.usage.cached_tokens;
    totals.output_tokens += choice.usage.completion_tokens;
    earlier(&queued, choice.timings.queued);
    earlier(&scheduled, choice.timings.first_scheduled);
    earlier(&first, choice.timings.first_token);
    last = std::max(last, choice.timings.last_token);
    finished = std::max(finished, choice.timings.finished);
  }
  if (queued == absl::InfiniteFuture()) return totals;
  if (scheduled == absl::InfiniteFuture()) {
    if (finished != absl::InfinitePast()) totals.queue = finished - queued;
    return totals;
  }
  totals.queue = scheduled - queued;
  if (first == absl::InfiniteFuture()) return totals;
  totals.prefill = first - scheduled;
  totals.decode = last - first;
  totals.ttft = first - record.arrival;
  return totals;
}

}  // namespace switchyard::server
