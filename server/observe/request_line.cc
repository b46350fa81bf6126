#include "server/observe/request_line.h"

#include <cmath>
#include <optional>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/text/json_value.h"

namespace switchyard::server {
namespace {

using LineJson = nlohmann::ordered_json;

LineJson TextOrNull(const std::string& text) { return text.empty() ? LineJson() : LineJson(text); }

// In seconds, to the microsecond.
LineJson SecondsOrNull(std::optional<absl::Duration> duration) {
  if (!duration.has_value()) return LineJson();
  return std::round(absl::ToDoubleSeconds(*duration) * 1e6) / 1e6;
}

}  // namespace

std::string RequestLine(const RequestRecord& record) {
  const RequestTotals totals = TotalsOf(record);
  const absl::string_view outcome = OutcomeOf(record);
  const bool accepted = record.num_prompts > 0;
  const LineJson line = {
      {"time", absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", record.OnWallClock(record.end), absl::UTCTimeZone())},
      {"id", TextOrNull(record.id)},
      {"key", TextOrNull(record.key)},
      {"client", TextOrNull(record.client)},
      {"api", record.api},
      {"model", TextOrNull(record.model)},
      {"stream", accepted ? LineJson(record.is_stream) : LineJson()},
      {"prompts", record.num_prompts},
      {"n", accepted ? LineJson(record.num_choices) : LineJson()},
      {"prompt_tokens", record.prompt_tokens},
      {"cached_tokens", totals.cached_tokens},
      {"output_tokens", totals.output_tokens},
      {"queue_seconds", SecondsOrNull(totals.queue)},
      {"prefill_seconds", SecondsOrNull(totals.prefill)},
      {"decode_seconds", SecondsOrNull(totals.decode)},
      {"ttft_seconds", SecondsOrNull(totals.ttft)},
      {"total_seconds", SecondsOrNull(record.end - record.arrival)},
      {"outcome", std::string(outcome)},
      {"code", record.code},
      {"reason", TextOrNull(record.reason)},
      {"http_status", record.http_status.has_value() ? LineJson(*record.http_status) : LineJson()},
      {"trace_id", TextOrNull(record.trace.trace_id)}};
  return JsonText(line) + "\n";
}

}  // namespace switchyard::server
