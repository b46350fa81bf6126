#include "proto/support/trace_writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/trace_bytes.h"

namespace switchyard::rpc {

absl::StatusOr<std::string> TraceBeginning(const v1::GetModelInfoResponse& model) {
  const TraceHead head = {.num_layers = model.num_moe_layers(),
                          .num_experts = model.num_experts(),
                          .top_k = model.experts_per_token(),
                          .model = absl::string_view(model.weights_hash()).substr(0, kMaxTraceNameBytes)};
  if (head.num_layers < 1 || head.num_layers > kMaxTraceLayers || head.num_experts < 1 ||
      head.num_experts > kMaxTraceExperts || head.top_k < 1 || head.top_k > head.num_experts) {
    return absl::DataLossError(absl::StrCat("model ", model.model(), " has ", head.num_layers, " MoE layers of ",
                                            head.num_experts, " experts, ", head.top_k, " a token: no trace"));
  }
  std::string bytes;
  AppendTraceHead(head, &bytes);
  return bytes;
}

absl::StatusOr<std::string> TraceOf(const v1::GetModelInfoResponse& model, const TracedSequence& sequence) {
  const v1::ExpertPaths& paths = *sequence.paths;
  if (sequence.token_ids.empty()) return absl::DataLossError("a sequence without tokens");
  const absl::Span<const int32_t> computed = sequence.token_ids.first(sequence.token_ids.size() - 1);
  const size_t row_bytes = sizeof(int16_t) * static_cast<size_t>(std::max(model.num_moe_layers(), 0)) *
                           static_cast<size_t>(std::max(model.experts_per_token(), 0));
  if (paths.first_position() != 0 || paths.num_moe_layers() != model.num_moe_layers() ||
      paths.top_k() != model.experts_per_token() || paths.experts().size() != computed.size() * row_bytes) {
    return absl::DataLossError(absl::StrCat("expert paths from position ", paths.first_position(), ", ",
                                            paths.experts().size(), " bytes of [", paths.num_moe_layers(), ", ",
                                            paths.top_k(), "] a token; wanted from 0, ", computed.size() * row_bytes,
                                            " of [", model.num_moe_layers(), ", ", model.experts_per_token(), "]"));
  }
  std::string bytes;
  AppendTraceBody({.label = sequence.label.substr(0, kMaxTraceNameBytes),
                   .num_prompt = std::clamp(sequence.num_prompt, 0, static_cast<int32_t>(computed.size())),
                   .token_ids = computed,
                   .experts = paths.experts()},
                  &bytes);
  return bytes;
}

}  // namespace switchyard::rpc
