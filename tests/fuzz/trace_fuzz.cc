// Routing traces, with the checksum that the last sequence should end in put behind them.  What is read is written as
// bytes that are read as the same; profiles can be counted from it.
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/trace_bytes.h"
#include "scheduler/popularity/trace/trace_file.h"
#include "scheduler/popularity/trace/trace_profile.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

std::string BytesOf(const popularity::RoutingTrace& trace) {
  TraceHead head = {trace.shape.num_layers, trace.shape.num_experts, trace.shape.top_k, trace.model};
  for (const auto& channel : trace.channels) head.channels.push_back({channel.name, channel.num_predicted});
  std::string bytes;
  AppendTraceHead(head, &bytes);
  for (const popularity::TraceSequence& sequence : trace.sequences) {
    const std::string experts = TraceIds(sequence.experts);
    std::vector<std::string> ids;
    for (const auto& predictions : sequence.predictions) ids.push_back(TraceIds(predictions));
    AppendTraceBody({sequence.label, sequence.num_prompt, sequence.token_ids, experts, {ids.begin(), ids.end()}},
                    &bytes);
  }
  return bytes;
}

void FuzzTrace(absl::string_view bytes) {
  const auto trace = popularity::ParseTrace(bytes);
  absl::Status torn;
  const auto part = popularity::ParseTrace(bytes, &torn);
  SY_CHECK_EQ(trace.ok(), part.ok() && torn.ok());
  if (part.ok()) SY_CHECK_EQ(BytesOf(*part), bytes.substr(0, BytesOf(*part).size()));
  if (!trace.ok()) return;
  SY_CHECK_EQ(BytesOf(*trace), bytes);
  const bool small = int64_t{trace->shape.num_layers} * trace->shape.num_experts < 10'000;
  const auto counted = small ? popularity::CountTrace(*trace, 3) : absl::UnavailableError("");
  if (counted.ok()) SY_CHECK_OK(popularity::ProfileBundle::Parse(counted->Serialize()).status());
}

}  // namespace

void Fuzz(absl::string_view input) {
  FuzzTrace(input);
  const size_t marker = input.rfind("SEQ1");
  if (marker == absl::string_view::npos) return;
  std::string sealed(input);
  AppendInt(Fnv1a(input.substr(marker)), &sealed);
  FuzzTrace(sealed);
}

}  // namespace switchyard::fuzz
