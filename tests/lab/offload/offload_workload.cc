#include "tests/lab/offload/offload_workload.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/offload/forecast/need_forecast.h"
#include "scheduler/popularity/popularity.h"
#include "tests/lab/offload/forecast_calibration.h"

namespace switchyard {
namespace {

// Tokens of one pass, each (sequence, position).
struct TokenAt {
  const popularity::TraceSequence* sequence = nullptr;
  int64_t position = 0;
};
using Pass = std::vector<TokenAt>;

// Hands out the trace's sequences, over and over.
class SequenceRing {
 public:
  explicit SequenceRing(const popularity::RoutingTrace& trace) : trace_(trace) {}
  const popularity::TraceSequence* Next() {
    const popularity::TraceSequence* next = &trace_.sequences[at_];
    at_ = (at_ + 1) % trace_.sequences.size();
    return next;
  }

 private:
  const popularity::RoutingTrace& trace_;
  size_t at_ = 0;
};

std::vector<Pass> DecodePasses(const popularity::RoutingTrace& trace, const WorkloadOptions& options) {
  SequenceRing ring(trace);
  std::vector<TokenAt> lanes(options.batch);
  std::vector<Pass> passes;
  for (int64_t pass = 0; pass < options.max_passes; ++pass) {
    for (TokenAt& lane : lanes) {
      while (lane.sequence == nullptr || lane.position >= lane.sequence->num_tokens()) lane = {ring.Next(), 0};
    }
    passes.push_back(lanes);
    for (TokenAt& lane : lanes) ++lane.position;
  }
  return passes;
}

std::vector<Pass> PrefillPasses(const popularity::RoutingTrace& trace, const WorkloadOptions& options) {
  SequenceRing ring(trace);
  std::vector<Pass> passes;
  while (static_cast<int64_t>(passes.size()) < options.max_passes) {
    const popularity::TraceSequence* sequence = ring.Next();
    for (int64_t begin = 0; begin < sequence->num_tokens(); begin += options.prefill_tokens) {
      const int64_t end = std::min<int64_t>(sequence->num_tokens(), begin + options.prefill_tokens);
      Pass pass;
      for (int64_t t = begin; t < end; ++t) pass.push_back({sequence, t});
      passes.push_back(std::move(pass));
    }
  }
  passes.resize(options.max_passes);
  return passes;
}

std::vector<Pass> TextPasses(const popularity::RoutingTrace& trace, const WorkloadOptions& options) {
  SequenceRing ring(trace);
  std::vector<Pass> passes;
  while (static_cast<int64_t>(passes.size()) < options.max_passes) {
    const popularity::TraceSequence* sequence = ring.Next();
    const int64_t prompt = std::min<int64_t>(options.prompt_tokens, (sequence->num_tokens() + 1) / 2);
    const int64_t end = std::min<int64_t>(sequence->num_tokens(), prompt + options.decoded_tokens);
    Pass& first = passes.emplace_back();
    for (int64_t t = 0; t < prompt; ++t) first.push_back({sequence, t});
    for (int64_t t = prompt; t < end; ++t) passes.push_back({{sequence, t}});
  }
  passes.resize(static_cast<size_t>(options.max_passes));
  return passes;
}

// One channel's forecasts, layer by layer calibrated.
class ChannelForecast {
 public:
  ChannelForecast(const popularity::RoutingTrace& trace, int channel)
      : shape_(trace.shape), channel_(channel), places_(trace.channels[channel].num_predicted) {
    layers_.assign(shape_.num_layers, ForecastCalibration(places_, shape_.num_experts, shape_.top_k));
  }

  // Rows expected of the layer in this pass, and the counts of how right that was; empty if nothing was predicted.
  popularity::Popularity Expect(const Pass& pass, int layer) {
    std::vector<int32_t> named(static_cast<size_t>(places_) * shape_.num_experts, 0);
    std::vector<int64_t> hits(places_, 0);
    for (const TokenAt& token : pass) {
      const int16_t* predicted =
          &token.sequence->predictions[channel_][(token.position * shape_.num_layers + layer) * places_];
      const int16_t* experts = &token.sequence->experts[(token.position * shape_.num_layers + layer) * shape_.top_k];
      for (int j = 0; j < places_; ++j) {
        if (predicted[j] < 0) return {};
        ++named[static_cast<size_t>(j) * shape_.num_experts + predicted[j]];
        hits[j] += std::find(experts, experts + shape_.top_k, predicted[j]) != experts + shape_.top_k;
      }
    }
    popularity::Popularity rows(static_cast<size_t>(shape_.num_experts));
    layers_[layer].ExpectedRows(named, static_cast<int64_t>(pass.size()), absl::MakeSpan(rows));
    layers_[layer].Count(hits, static_cast<int64_t>(pass.size()));
    return rows;
  }

 private:
  popularity::RoutingShape shape_;
  int channel_;
  int places_;
  std::vector<ForecastCalibration> layers_;
};

// The rows expected of one step's following layers, by layers ahead; empty = there are none.
struct Expected {
  popularity::Popularity ahead[2];
};

// Forecasts as a worker gives its load predictor's to its policy (workers/moe/experts/expert_offload.h).
void ReportForecasts(absl::Span<const Expected> expected, OffloadWorkload* workload) {
  offload::NeedForecast forecast({workload->num_layers, workload->num_experts, 0});
  for (size_t i = 0; i < workload->steps.size(); ++i) {
    OffloadStep& step = workload->steps[i];
    forecast.Observe({.layer = step.layer, .rows = step.rows});
    for (int ahead = 1; ahead <= 2; ++ahead) {
      const popularity::Popularity& rows = expected[i].ahead[ahead - 1];
      if (!rows.empty()) forecast.Expect(step.layer, ahead, rows);
    }
    for (const offload::LayerForecast& each : forecast.forecasts())
      step.forecast[static_cast<size_t>(each.ahead) - 1].assign(each.chance.begin(), each.chance.end());
  }
}

absl::StatusOr<int> FindChannel(const popularity::RoutingTrace& trace, const std::string& name) {
  for (size_t c = 0; c < trace.channels.size(); ++c) {
    if (trace.channels[c].name == name) return static_cast<int>(c);
  }
  return absl::InvalidArgumentError(absl::StrCat("the trace has no channel \"", name, "\""));
}

std::vector<int32_t> RowsOf(const popularity::RoutingTrace& trace, const Pass& pass, int layer) {
  std::vector<int32_t> rows(trace.shape.num_experts, 0);
  for (const TokenAt& token : pass) {
    const int16_t* experts =
        &token.sequence->experts[(token.position * trace.shape.num_layers + layer) * trace.shape.top_k];
    for (int k = 0; k < trace.shape.top_k; ++k) {
      if (experts[k] >= 0) ++rows[experts[k]];
    }
  }
  return rows;
}

}  // namespace

NeedSequence OffloadWorkload::Needs() const {
  NeedSequence needs;
  for (const OffloadStep& step : steps) {
    std::vector<offload::ExpertKey>& keys = needs.emplace_back();
    for (int e = 0; e < num_experts; ++e) {
      if (step.rows[e] > 0) keys.push_back(step.layer * num_experts + e);
    }
  }
  return needs;
}

absl::StatusOr<OffloadWorkload> CutWorkload(const popularity::RoutingTrace& trace, const WorkloadOptions& options) {
  if (trace.num_tokens() == 0) return absl::InvalidArgumentError("the trace has no tokens");
  std::vector<std::vector<ChannelForecast>> channels(2);
  const std::string* names[2] = {&options.one_ahead, &options.two_ahead};
  for (int ahead = 0; ahead < 2; ++ahead) {
    if (names[ahead]->empty()) continue;
    const absl::StatusOr<int> channel = FindChannel(trace, *names[ahead]);
    if (!channel.ok()) return channel.status();
    channels[ahead].emplace_back(trace, *channel);
  }
  const std::vector<Pass> passes = options.prompt_tokens > 0    ? TextPasses(trace, options)
                                   : options.prefill_tokens > 0 ? PrefillPasses(trace, options)
                                                                : DecodePasses(trace, options);
  const int layers = trace.shape.num_layers;
  OffloadWorkload workload = {layers, trace.shape.num_experts, 0, {}};
  std::vector<Expected> expected;
  for (const Pass& pass : passes) {
    const size_t first = workload.steps.size();
    workload.tokens += static_cast<int64_t>(pass.size());
    for (int layer = 0; layer < layers; ++layer) {
      workload.steps.push_back({layer, RowsOf(trace, pass, layer), std::vector<std::vector<int32_t>>(2)});
    }
    expected.resize(workload.steps.size());
    // What the pass says of a layer was said `ahead` layers before it.
    for (int ahead = 1; ahead <= 2; ++ahead) {
      for (int layer = ahead; layer < layers && !channels[ahead - 1].empty(); ++layer) {
        expected[first + layer - ahead].ahead[ahead - 1] = channels[ahead - 1][0].Expect(pass, layer);
      }
    }
  }
  ReportForecasts(expected, &workload);
  return workload;
}

std::vector<int64_t> MarginalRows(const popularity::RoutingTrace& trace) {
  const popularity::RoutingShape& shape = trace.shape;
  std::vector<int64_t> rows(static_cast<size_t>(shape.num_layers) * shape.num_experts, 0);
  for (const popularity::TraceSequence& sequence : trace.sequences) {
    for (size_t i = 0; i < sequence.experts.size(); ++i) {
      const size_t layer = i / shape.top_k % shape.num_layers;
      if (sequence.experts[i] >= 0) ++rows[layer * shape.num_experts + sequence.experts[i]];
    }
  }
  return rows;
}

}  // namespace switchyard
