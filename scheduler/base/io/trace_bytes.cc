#include "scheduler/base/io/trace_bytes.h"

#include "scheduler/base/check.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"

namespace switchyard {
namespace {

void AppendName(absl::string_view text, std::string* bytes) {
  SY_CHECK_LE(text.size(), static_cast<size_t>(kMaxTraceNameBytes));
  AppendString(text, bytes);
}

}  // namespace

std::string TraceIds(absl::Span<const int16_t> values) {
  std::string bytes;
  bytes.reserve(values.size() * sizeof(int16_t));
  for (const int16_t value : values) AppendInt(value, &bytes);
  return bytes;
}

void AppendTraceHead(const TraceHead& head, std::string* bytes) {
  SY_CHECK(head.num_layers >= 1 && head.num_layers <= kMaxTraceLayers);
  SY_CHECK(head.num_experts >= 1 && head.num_experts <= kMaxTraceExperts);
  SY_CHECK(head.top_k >= 1 && head.top_k <= head.num_experts);
  SY_CHECK(head.channels.size() <= kMaxTraceChannels);
  bytes->append(kTraceMagic.data(), kTraceMagic.size());
  AppendInt(static_cast<uint32_t>(head.num_layers), bytes);
  AppendInt(static_cast<uint32_t>(head.num_experts), bytes);
  AppendInt(static_cast<uint32_t>(head.top_k), bytes);
  AppendInt(static_cast<uint32_t>(head.channels.size()), bytes);
  AppendName(head.model, bytes);
  for (const TraceHead::Channel& channel : head.channels) {
    SY_CHECK(channel.num_predicted >= 1 && channel.num_predicted <= head.num_experts);
    AppendName(channel.name, bytes);
    AppendInt(static_cast<uint32_t>(channel.num_predicted), bytes);
  }
}

void AppendTraceBody(const TraceBody& body, std::string* bytes) {
  SY_CHECK(body.num_prompt >= 0 && static_cast<size_t>(body.num_prompt) <= body.token_ids.size());
  const size_t begin = bytes->size();
  AppendInt(kTraceSequenceMarker, bytes);
  AppendName(body.label, bytes);
  AppendInt(static_cast<uint32_t>(body.num_prompt), bytes);
  AppendInt(static_cast<uint32_t>(body.token_ids.size()), bytes);
  for (const int32_t token : body.token_ids) AppendInt(token, bytes);
  bytes->append(body.experts.data(), body.experts.size());
  for (const absl::string_view predictions : body.predictions) bytes->append(predictions.data(), predictions.size());
  AppendInt(Fnv1a(absl::string_view(*bytes).substr(begin)), bytes);
}

}  // namespace switchyard
