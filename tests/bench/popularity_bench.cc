// How right each estimator of the next layer's popularity is: a profile is counted on one trace and frozen, then other
// traces are replayed in batches as a server mixes them.
//
//   popularity_bench --fit=FILE --test=FILE[,FILE…] [--batches=8,32,256,2048]
//     [--leave_out=LABEL]    keeps the fit trace's sequences of that label out of the profile
//     [--min_tokens=2] [--choices=2] [--length=6] [--rows=BYTES]   ProfilePredictorOptions, ProfileIdentity,
//     ProfileLimits
//     [--quick]              the two smallest batches, and with --chain a tenth of the sequences
//   popularity_bench --chain …     chains tuned to the Lina paper's skew and pattern (scheduler/PAPERS.md, LI-5, LI-6)
//   instead
//
// Per phase (prefill: neighbouring tokens, decode: one token of each stream), batch size and estimator, over the layers
// in which it has an estimate but layer 0:
//   top-2k   share of batches whose set of the 2k most popular experts is right     TV   total-variation distance
//   token    share of a token's own experts found
// Ends with one line of JSON: at the largest batch, prefill, the worst of the test traces.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/base/check.h"
#include "scheduler/popularity/predictors/calibrated_predictor.h"
#include "scheduler/popularity/predictors/estimate_score.h"
#include "scheduler/popularity/predictors/observed_predictor.h"
#include "scheduler/popularity/predictors/profile_predictor.h"
#include "scheduler/simulator/trace_batches.h"
#include "tests/bench/read_trace.h"
#include "tests/lab/routing/blend_of_predictors.h"
#include "tests/lab/routing/corrected_predictor.h"
#include "tests/lab/routing/forecast_scores.h"
#include "tests/lab/routing/last_batch_predictor.h"
#include "tests/lab/routing/load_predictor.h"
#include "tests/lab/routing/routing_chain.h"
#include "tests/lab/routing/token_predictions.h"

namespace switchyard {
namespace {

struct Figures {
  int64_t batches = 0, right = 0;
  double distance = 0;
  TokensFound tokens;
  double Distance() const { return distance / static_cast<double>(std::max<int64_t>(1, batches)); }
  double Accuracy() const { return static_cast<double>(right) / static_cast<double>(std::max<int64_t>(1, batches)); }
  double TokenShare() const {
    return static_cast<double>(tokens.found) / static_cast<double>(std::max<int64_t>(1, tokens.rows));
  }
};

// Knows the chain, and of each token its whole path: as good as an estimator of single tokens can be.
class BayesPredictor : public LoadPredictor {
 public:
  explicit BayesPredictor(const RoutingChain* chain) : chain_(chain) {}
  popularity::Popularity Estimate(const popularity::RoutingView& batch, int layer) const override {
    popularity::Popularity popularity(static_cast<size_t>(batch.shape.num_experts));
    std::vector<double> next(popularity.size()), sum(popularity.size());
    for (int64_t t = 0; t < batch.num_tokens; ++t) {
      chain_->NextDistribution(batch, t, layer, absl::MakeSpan(next));
      for (size_t e = 0; e < sum.size(); ++e) sum[e] += next[e];
    }
    for (size_t e = 0; e < sum.size(); ++e) popularity[e] = static_cast<int64_t>(sum[e] * popularity::kRow);
    return popularity;
  }
  void Observe(const popularity::RoutingView& /*batch*/, int /*layer*/) override {}

 private:
  const RoutingChain* chain_;
};

struct Profiles {
  popularity::PathProfile path, token;
  std::vector<popularity::PathProfile> predicted;  // [channels]
  int min_tokens;                                  // that a row is asked of
};

popularity::ProfileIdentity PredictedBy(const popularity::TraceChannel& channel, const popularity::RoutingTrace& fit) {
  return {.model = fit.model,
          .shape = fit.shape,
          .context = popularity::ContextKind::kPredicted,
          .channel = channel.name,
          .path_length = std::min(channel.num_predicted, 4),
          .num_choices = 1};
}

// [T, M] of the whole sequence.
std::vector<int16_t> PredictionsOf(const popularity::RoutingTrace& trace, const popularity::TraceSequence& sequence,
                                   size_t channel, int layer) {
  const int64_t width = trace.channels[channel].num_predicted, layers = trace.shape.num_layers;
  std::vector<int16_t> predictions;
  for (int64_t t = 0; t < sequence.num_tokens(); ++t) {
    const auto begin = sequence.predictions[channel].begin() + (t * layers + layer) * width;
    predictions.insert(predictions.end(), begin, begin + width);
  }
  return predictions;
}

struct CountOptions {
  std::string leave_out;
  int64_t min_tokens = 2, choices = 2, length = popularity::kMaxPathLength, max_bytes = int64_t{64} << 20;
};

Profiles Count(const popularity::RoutingTrace& fit, const CountOptions& options) {
  const popularity::ProfileLimits limits{.max_bytes = options.max_bytes, .halve_after_tokens = 0};
  popularity::ProfileIdentity path{.model = fit.model,
                                   .shape = fit.shape,
                                   .path_length = static_cast<int>(options.length),
                                   .num_choices = static_cast<int>(options.choices)};
  popularity::ProfileIdentity token{.model = fit.model,
                                    .shape = fit.shape,
                                    .context = popularity::ContextKind::kToken,
                                    .path_length = 1,
                                    .num_choices = 1};
  Profiles profiles{.path = popularity::PathProfile(path, limits),
                    .token = popularity::PathProfile(token, limits),
                    .predicted = {},
                    .min_tokens = static_cast<int>(options.min_tokens)};
  for (const popularity::TraceChannel& channel : fit.channels)
    profiles.predicted.emplace_back(PredictedBy(channel, fit), limits);
  for (const popularity::TraceSequence& sequence : fit.sequences) {
    if (!options.leave_out.empty() && sequence.label == options.leave_out) continue;
    const popularity::RoutingView all = popularity::ViewOf(fit, sequence, 0, sequence.num_tokens());
    for (int layer = 0; layer < fit.shape.num_layers; ++layer) {
      profiles.path.Observe(all, layer);
      profiles.token.Observe(all, layer);
      for (size_t c = 0; c < fit.channels.size(); ++c)
        profiles.predicted[c].Observe(all, layer, PredictionsOf(fit, sequence, c, layer));
    }
  }
  return profiles;
}

// A channel's predictions as an estimator.
struct Statement {
  std::shared_ptr<popularity::ObservedPredictor> said;
  popularity::Popularity Estimate(const popularity::RoutingView& batch, int layer) const {
    return said->Estimate(batch, layer);
  }
};

// The parts that are measured together: the estimators, and the channels that some of them read.
class Field {
 public:
  Field(const popularity::RoutingTrace& trace, const Profiles& profiles, const RoutingChain* chain)
      : trace_(trace), profiles_(profiles) {
    const popularity::PathProfile &path = profiles.path, &token = profiles.token;
    Add("marginal", Profile(path, 0, false));
    Add("last_batch", {std::make_unique<LastBatch>(LastBatchPredictor(trace.shape)), {}});
    for (int length = 1; length <= popularity::kMaxPathLength; ++length)
      Add(absl::StrCat("path l=", length), Profile(path, length, false));
    Add("path l=3 top_k (paper)", Profile(path, 3, true));
    Add("token", Profile(token, 1, false));
    Add("marginal_corrected", Corrected(Profile(path, 0, false)));
    Add("path l=3_corrected", Corrected(Profile(path, 3, false)));
    Add("token_corrected", Corrected(Profile(token, 1, false)));
    for (size_t c = 0; c < trace.channels.size(); ++c) {
      const std::string& name = trace.channels[c].name;
      Add(name, AsReported(c));
      Add(absl::StrCat(name, "_corrected"), Corrected(AsReported(c)));
      Add(absl::StrCat(name, "_calibrated"), Calibrated(c));
      Add(absl::StrCat(name, "_calibrated_corrected"), Corrected(Calibrated(c)));
    }
    std::vector<std::unique_ptr<LoadPredictor>> all;
    all.push_back(Corrected(Profile(path, 3, false)).predictor);
    all.push_back(Corrected(Profile(token, 1, false)).predictor);
    for (size_t c = 0; c < trace.channels.size(); ++c) all.push_back(Corrected(Calibrated(c)).predictor);
    Add("blend", {std::make_unique<BlendOfPredictors>(std::move(all), trace_.shape), {}});
    if (chain != nullptr) Add("bayes", {std::make_unique<BayesPredictor>(chain), {}});
    figures_.resize(estimators_.size());
  }

  // Replays the batches; layer by layer as the model would run.
  void Run(popularity::Phase phase, int64_t batch_tokens) {
    simulator::TraceBatches batches(&trace_, phase, batch_tokens);
    for (int64_t b = 0; b < batches.num_batches(); ++b) {
      batches.Load(b);
      for (int layer = 0; layer < trace_.shape.num_layers; ++layer) {
        for (const auto& [channel, observed] : reported_)
          observed->SetPredictions(layer, trace_.channels[channel].num_predicted, batches.Predictions(channel, layer));
        for (size_t j = 0; j < estimators_.size(); ++j) Score(j, batches.View(), layer);
      }
    }
  }

  size_t size() const { return estimators_.size(); }
  const std::string& name(size_t j) const { return names_[j]; }
  const Figures& figures(size_t j) const { return figures_[j]; }

 private:
  using LastBatch = LoadPredictorOf<LastBatchPredictor>;
  // An estimator's experts of each token, top_k of them; none: it predicts no tokens.
  using TokenPredictions = std::function<std::vector<int16_t>(const popularity::RoutingView& batch, int layer)>;
  struct Estimator {
    std::unique_ptr<LoadPredictor> predictor;
    TokenPredictions tokens;
  };

  void Add(std::string name, Estimator estimator) {
    names_.push_back(std::move(name));
    estimators_.push_back(std::move(estimator));
  }
  Estimator Profile(const popularity::PathProfile& profile, int length, bool mask) const {
    const popularity::ProfilePredictor predictor(
        &profile, {.max_length = length, .min_tokens = profiles_.min_tokens, .mask_to_top_k = mask});
    return {std::make_unique<LoadPredictorOf<popularity::ProfilePredictor>>(predictor),
            [predictor, &profile](const popularity::RoutingView& batch, int layer) {
              return PredictTokens(predictor, profile, batch, layer, batch.shape.top_k);
            }};
  }
  Estimator Corrected(Estimator inner) const {
    return {std::make_unique<CorrectedPredictor>(std::move(inner.predictor), trace_.shape), {}};
  }
  // A channel's predictions, which last until the layer's batch is scored.
  std::shared_ptr<popularity::ObservedPredictor> Reported(size_t channel) {
    reported_.emplace_back(channel, std::make_shared<popularity::ObservedPredictor>(trace_.shape));
    return reported_.back().second;
  }
  Estimator AsReported(size_t channel) {
    const auto said = Reported(channel);
    return {std::make_unique<LoadPredictorOf<Statement>>(Statement{said}),
            [said](const popularity::RoutingView& batch, int layer) {
              return PredictTokens(*said, batch, layer, batch.shape.top_k);
            }};
  }
  Estimator Calibrated(size_t channel) {
    const auto said = Reported(channel);
    const popularity::CalibratedPredictor predictor(said.get(), &profiles_.predicted[channel], profiles_.min_tokens);
    return {std::make_unique<LoadPredictorOf<popularity::CalibratedPredictor>>(predictor),
            [predictor, said](const popularity::RoutingView& batch, int layer) {
              return PredictTokens(predictor, *said, batch, layer, batch.shape.top_k);
            }};
  }

  void Score(size_t j, const popularity::RoutingView& batch, int layer) {
    Figures& figures = figures_[j];
    const Estimator& estimator = estimators_[j];
    const popularity::Popularity estimate =
        layer > 0 ? estimator.predictor->Estimate(batch, layer) : popularity::Popularity();
    if (!estimate.empty()) {
      const std::vector<int64_t> actual = popularity::CountsOf(batch, layer);
      ++figures.batches;
      figures.right += popularity::SameTopExperts(estimate, actual, 2 * trace_.shape.top_k);
      figures.distance += TotalVariation(estimate, actual);
      if (estimator.tokens) {
        const TokensFound tokens = CountFound(batch, layer, trace_.shape.top_k, estimator.tokens(batch, layer));
        figures.tokens.found += tokens.found;
        figures.tokens.rows += tokens.rows;
      }
    }
    estimator.predictor->Observe(batch, layer);
  }

  const popularity::RoutingTrace& trace_;
  const Profiles& profiles_;
  std::vector<std::string> names_;
  std::vector<Estimator> estimators_;
  std::vector<std::pair<size_t, std::shared_ptr<popularity::ObservedPredictor>>> reported_;  // (channel, its latest)
  std::vector<Figures> figures_;
};

void PrintTable(const std::vector<std::unique_ptr<Field>>& columns, const std::vector<int64_t>& sizes) {
  std::printf("%-27s", "estimator");
  for (const int64_t size : sizes) std::printf(" | %5lld: top-2k    TV", static_cast<long long>(size));
  std::printf(" | token\n");
  for (size_t j = 0; j < columns[0]->size(); ++j) {
    std::printf("%-27s", columns[0]->name(j).c_str());
    for (const std::unique_ptr<Field>& column : columns)
      std::printf(" |         %5.2f %6.3f", column->figures(j).Accuracy(), column->figures(j).Distance());
    const Figures& last = columns.back()->figures(j);
    if (last.tokens.rows > 0) std::printf(" | %5.3f", last.TokenShare());
    std::printf("\n");
  }
  std::printf("\n");
}

// The figures: the best estimator against the best of marginal, last_batch and path; the best token share.
struct Summary {
  double tv_over_baseline = 0, token_agreement = 1;
  void Add(const Field& field) {
    double baseline = 1, best = 1, token = 0;
    for (size_t j = 0; j < field.size(); ++j) {
      const std::string name = field.name(j);
      if (name == "bayes" || field.figures(j).batches == 0) continue;
      const double distance = field.figures(j).Distance();
      const bool is_baseline = name == "marginal" || name == "last_batch" ||
                               (absl::StartsWith(name, "path") && !absl::StrContains(name, "corrected"));
      if (is_baseline) baseline = std::min(baseline, distance);
      best = std::min(best, distance);
      token = std::max(token, field.figures(j).TokenShare());
    }
    tv_over_baseline = std::max(tv_over_baseline, best / baseline);
    token_agreement = std::min(token_agreement, token);
  }
};

void Measure(const std::string& title, const popularity::RoutingTrace& trace, const Profiles& profiles,
             const RoutingChain* chain, const std::vector<int64_t>& sizes, Summary* summary) {
  for (const popularity::Phase phase : {popularity::Phase::kPrefill, popularity::Phase::kDecode}) {
    std::printf("%s, %s, %lld tokens\n", title.c_str(), std::string(popularity::NameOf(phase)).c_str(),
                static_cast<long long>(trace.num_tokens()));
    std::vector<std::unique_ptr<Field>> columns;
    for (const int64_t size : sizes) {
      columns.push_back(std::make_unique<Field>(trace, profiles, chain));
      columns.back()->Run(phase, size);
    }
    PrintTable(columns, sizes);
    if (phase == popularity::Phase::kPrefill) summary->Add(*columns.back());
  }
}

using Flags = std::map<std::string, std::string>;

std::string Flag(const Flags& flags, const std::string& name, const std::string& otherwise) {
  const auto found = flags.find(name);
  return found == flags.end() ? otherwise : found->second;
}

int64_t Number(absl::string_view flag, absl::string_view text) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 1) return number;
  std::fprintf(stderr, "popularity_bench: --%s: %s is not a number from 1\n", std::string(flag).c_str(),
               std::string(text).c_str());
  std::exit(1);
}

int Main(const Flags& flags) {
  const bool quick = flags.contains("quick");
  std::vector<int64_t> sizes;
  for (const absl::string_view size : absl::StrSplit(Flag(flags, "batches", quick ? "8,32" : "8,32,256,2048"), ','))
    sizes.push_back(Number("batches", size));
  const CountOptions options{
      .leave_out = Flag(flags, "leave_out", ""),
      .min_tokens = Number("min_tokens", Flag(flags, "min_tokens", "2")),
      .choices = Number("choices", Flag(flags, "choices", "2")),
      .length = std::min<int64_t>(popularity::kMaxPathLength, Number("length", Flag(flags, "length", "6"))),
      .max_bytes = Number("rows", Flag(flags, "rows", "67108864"))};
  Summary summary;
  if (flags.contains("chain")) {
    const absl::StatusOr<RoutingChain> chain = RoutingChain::Tuned({});
    SY_CHECK_OK(chain.status());
    const Profiles profiles = Count(chain->Draw({.num_sequences = quick ? 40 : 400, .seed = 1}), options);
    const popularity::RoutingTrace test = chain->Draw({.num_sequences = quick ? 16 : 160, .seed = 2});
    Measure("chain", test, profiles, &*chain, sizes, &summary);
  } else {
    const Profiles profiles = Count(bench::ReadTraceOrExit(Flag(flags, "fit", "")), options);
    for (const absl::string_view path : absl::StrSplit(Flag(flags, "test", ""), ',')) {
      const popularity::RoutingTrace test = bench::ReadTraceOrExit(std::string(path));
      Measure(std::string(path.substr(path.find_last_of('/') + 1)), test, profiles, nullptr, sizes, &summary);
    }
  }
  std::printf("{\"tv_over_baseline\": %.3f, \"token_agreement\": %.3f}\n", summary.tv_over_baseline,
              summary.token_agreement);
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  constexpr const char* kFlags[] = {"fit",     "test",   "batches", "leave_out", "min_tokens",
                                    "choices", "length", "rows",    "chain",     "quick"};
  switchyard::Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> flag = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const std::string name(absl::StripPrefix(flag.first, "--"));
    if (name == flag.first || std::find(std::begin(kFlags), std::end(kFlags), name) == std::end(kFlags)) {
      std::fprintf(stderr, "popularity_bench: %s is no flag of it, its source names them\n", argv[i]);
      return 1;
    }
    flags[name] = flag.second;
  }
  return switchyard::Main(flags);
}
