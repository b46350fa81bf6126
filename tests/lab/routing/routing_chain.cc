#include "tests/lab/routing/routing_chain.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"

namespace switchyard {
namespace {

constexpr int kHalvings = 30;      // of a bisection
constexpr double kReached = 1e-4;  // how near a tuned figure must come

// The same numbers on every machine, which the standard's distributions do not promise.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    const uint64_t number = SplitMix(state_);
    state_ += kSplitMixStep;
    return number;
  }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // [0, 1)
  size_t Below(size_t n) { return static_cast<size_t>(Unit() * static_cast<double>(n)); }

 private:
  uint64_t state_;
};

void Shuffle(absl::Span<int16_t> values, Random& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.Below(i)]);
}

// The index whose weight the draw falls on; weights need not sum to 1.
size_t Pick(absl::Span<const double> weights, Random& random) {
  double left = random.Unit() * std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t last = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    if (left < weights[i]) return i;
    left -= weights[i];
  }
  return last;
}

absl::Status CheckOptions(const RoutingChainOptions& options) {
  const popularity::RoutingShape& shape = options.shape;
  const auto outside = [](absl::string_view field, auto value, absl::string_view limit) {
    return absl::InvalidArgumentError(absl::StrCat("routing chain: ", field, " is ", value, ", must be ", limit));
  };
  if (shape.num_layers < 2 || shape.num_layers > 1024) return outside("num_layers", shape.num_layers, "in [2, 1024]");
  if (shape.num_experts < 4 || shape.num_experts > 1024 || shape.num_experts % 2 != 0)
    return outside("num_experts", shape.num_experts, "even, in [4, 1024]");
  if (shape.top_k < 1 || shape.top_k > shape.num_experts / 2)
    return outside("top_k", shape.top_k, "in [1, num_experts / 2]");
  if (options.num_domains < 1 || options.num_domains > 256)
    return outside("num_domains", options.num_domains, "in [1, 256]");
  if (!(options.moved_share >= 0 && options.moved_share <= 1))
    return outside("moved_share", options.moved_share, "in [0, 1]");
  if (!(options.skew >= 1)) return outside("skew", options.skew, "1 or more");
  if (!(options.pattern_1 > 0 && options.pattern_1 <= 1)) return outside("pattern_1", options.pattern_1, "in (0, 1]");
  if (options.pattern_2 != 0 && !(options.pattern_2 >= options.pattern_1 && options.pattern_2 <= 1))
    return outside("pattern_2", options.pattern_2, "0, or in [pattern_1, 1]");
  return absl::OkStatus();
}

// The smallest x in [low, high] with f(x) >= wanted, f rising.
template <class Function>
double Bisect(double low, double high, double wanted, const Function& f) {
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (f(middle) < wanted ? low : high) = middle;
  }
  return high;
}

absl::Status CheckReached(absl::string_view figure, double wanted, double reached) {
  if (std::abs(wanted - reached) <= kReached * std::max(1.0, wanted)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("routing chain: ", figure, " ", wanted, " cannot be reached, the nearest is ", reached));
}

}  // namespace

RoutingChain::RoutingChain(const RoutingChainOptions& options) : options_(options) {}

size_t RoutingChain::ExpertAt(size_t domain, int layer, size_t rank) const {
  const auto layers = static_cast<size_t>(options_.shape.num_layers), experts = popularity_.size();
  return static_cast<size_t>(expert_at_[(domain * layers + static_cast<size_t>(layer)) * experts + rank]);
}

size_t RoutingChain::RankOf(size_t domain, int layer, int expert) const {
  const auto layers = static_cast<size_t>(options_.shape.num_layers), experts = popularity_.size();
  return static_cast<size_t>(
      rank_of_[(domain * layers + static_cast<size_t>(layer)) * experts + static_cast<size_t>(expert)]);
}

void RoutingChain::Permute() {
  const auto layers = static_cast<size_t>(options_.shape.num_layers), experts = popularity_.size();
  const auto domains = static_cast<size_t>(options_.num_domains);
  expert_at_.resize(domains * layers * experts);
  rank_of_.resize(expert_at_.size());
  Random random(options_.seed);
  const auto num_moved = static_cast<size_t>(std::lround(options_.moved_share * static_cast<double>(experts)));
  for (size_t layer = 0; layer < layers; ++layer) {
    std::vector<int16_t> common(experts);
    std::iota(common.begin(), common.end(), int16_t{0});
    Shuffle(absl::MakeSpan(common), random);
    for (size_t domain = 0; domain < domains; ++domain) {
      std::vector<int16_t> ranks(experts), own = common;
      std::iota(ranks.begin(), ranks.end(), int16_t{0});
      Shuffle(absl::MakeSpan(ranks), random);
      // A cycle over the moved ranks: none of them stays.
      for (size_t i = 0; i + 1 < num_moved; ++i)
        std::swap(own[static_cast<size_t>(ranks[i])], own[static_cast<size_t>(ranks[i + 1])]);
      const size_t begin = (domain * layers + layer) * experts;
      for (size_t rank = 0; rank < experts; ++rank) {
        expert_at_[begin + rank] = own[rank];
        rank_of_[begin + static_cast<size_t>(own[rank])] = static_cast<int16_t>(rank);
      }
    }
  }
}

void RoutingChain::SetPopularity(double ratio) {
  const size_t pairs = popularity_.size() / 2;
  double sum = 0;
  for (size_t rank = 0; rank < popularity_.size(); ++rank) {
    popularity_[rank] = std::pow(ratio, -static_cast<double>(rank / 2) / static_cast<double>(pairs - 1));
    sum += popularity_[rank];
  }
  for (double& share : popularity_) share /= sum;
}

double RoutingChain::Skew() const {
  double sum = 0;
  for (int layer = 0; layer < options_.shape.num_layers; ++layer) {
    std::vector<double> share(popularity_.size());
    for (size_t domain = 0; domain < static_cast<size_t>(options_.num_domains); ++domain)
      for (size_t rank = 0; rank < share.size(); ++rank) share[ExpertAt(domain, layer, rank)] += popularity_[rank];
    const auto [least, most] = std::minmax_element(share.begin(), share.end());
    sum += *most / *least;
  }
  return sum / options_.shape.num_layers;
}

void RoutingChain::TuneSkew() {
  // A domain's own skew is more than that of all domains together, as it exchanges ranks.
  const double log_ratio = Bisect(0, std::log(1e6), options_.skew, [&](double x) {
    SetPopularity(std::exp(x));
    return Skew();
  });
  SetPopularity(std::exp(log_ratio));
}

void RoutingChain::BuildJoints() {
  const size_t experts = popularity_.size();
  const auto domains = static_cast<size_t>(options_.num_domains);
  joints_.assign(static_cast<size_t>(options_.shape.num_layers - 1), Joint());
  for (int layer = 0; layer + 1 < options_.shape.num_layers; ++layer) {
    Joint& joint = joints_[static_cast<size_t>(layer)];
    for (std::vector<double>* part : {&joint.keep, &joint.swap, &joint.draw}) part->assign(experts * experts, 0);
    for (size_t domain = 0; domain < domains; ++domain) {
      for (size_t rank = 0; rank < experts; ++rank) {
        const double share = popularity_[rank] / static_cast<double>(domains);
        const size_t from = ExpertAt(domain, layer, rank) * experts;
        joint.keep[from + ExpertAt(domain, layer + 1, rank)] += share;
        joint.swap[from + ExpertAt(domain, layer + 1, rank ^ 1)] += share;
        for (size_t to = 0; to < experts; ++to)
          joint.draw[from + ExpertAt(domain, layer + 1, to)] += share * popularity_[to];
      }
    }
  }
}

double RoutingChain::Pattern(int k) const {
  const size_t experts = popularity_.size();
  std::vector<double> group(experts);
  double sum = 0;
  for (const Joint& joint : joints_) {
    for (size_t from = 0; from < experts * experts; from += experts) {
      for (size_t to = 0; to < experts; ++to) {
        group[to] = stay_ * ((1 - partner_) * joint.keep[from + to] + partner_ * joint.swap[from + to]) +
                    (1 - stay_) * joint.draw[from + to];
      }
      std::partial_sort(group.begin(), group.begin() + k, group.end(), std::greater<>());
      sum += std::accumulate(group.begin(), group.begin() + k, 0.0);
    }
  }
  return sum / static_cast<double>(joints_.size());
}

void RoutingChain::TunePattern() {
  BuildJoints();
  const auto with_partner = [&](double partner) {
    partner_ = partner;
    stay_ = Bisect(0, 1, options_.pattern_1, [&](double stay) {
      stay_ = stay;
      return Pattern(1);
    });
    return Pattern(2);
  };
  if (options_.pattern_2 == 0) {
    with_partner(0);
  } else {
    with_partner(Bisect(0, 0.5, options_.pattern_2, with_partner));
  }
}

absl::StatusOr<RoutingChain> RoutingChain::Tuned(const RoutingChainOptions& options) {
  if (absl::Status checked = CheckOptions(options); !checked.ok()) return checked;
  RoutingChain chain(options);
  chain.popularity_.resize(static_cast<size_t>(options.shape.num_experts));
  chain.Permute();
  chain.TuneSkew();
  chain.TunePattern();
  for (const absl::Status& reached :
       {CheckReached("skew", options.skew, chain.Skew()),
        CheckReached("pattern_1", options.pattern_1, chain.Pattern(1)),
        options.pattern_2 == 0 ? absl::OkStatus() : CheckReached("pattern_2", options.pattern_2, chain.Pattern(2))}) {
    if (!reached.ok()) return reached;
  }
  return chain;
}

void RoutingChain::Transition(size_t domain, int layer, size_t rank, absl::Span<double> next) const {
  const double drawn = layer == 0 ? 1 : 1 - stay_;
  for (size_t to = 0; to < popularity_.size(); ++to) next[ExpertAt(domain, layer, to)] = drawn * popularity_[to];
  if (layer == 0) return;
  next[ExpertAt(domain, layer, rank)] += stay_ * (1 - partner_);
  next[ExpertAt(domain, layer, rank ^ 1)] += stay_ * partner_;
}

popularity::RoutingTrace RoutingChain::Draw(const ChainDraw& draw) const {
  SY_CHECK(draw.sequence_tokens >= 1 && draw.domain_run >= 1);
  popularity::RoutingTrace trace{.model = "chain", .shape = options_.shape, .channels = {}, .sequences = {}};
  Random random(draw.seed);
  const auto domains = static_cast<size_t>(options_.num_domains);
  size_t domain = random.Below(domains);
  std::vector<double> next(popularity_.size());
  for (int64_t s = 0; s < draw.num_sequences; ++s) {
    if (s > 0 && random.Unit() * draw.domain_run < 1) domain = random.Below(domains);
    popularity::TraceSequence sequence;
    sequence.label = absl::StrCat("domain", domain);
    sequence.num_prompt = static_cast<int32_t>(draw.sequence_tokens);
    for (int64_t t = 0; t < draw.sequence_tokens; ++t) {
      sequence.token_ids.push_back(static_cast<int32_t>(random.Below(1000)));
      size_t rank = 0;
      for (int layer = 0; layer < options_.shape.num_layers; ++layer) {
        Transition(domain, layer, rank, absl::MakeSpan(next));
        for (int k = 0; k < options_.shape.top_k; ++k) {
          const size_t expert = Pick(next, random);
          sequence.experts.push_back(static_cast<int16_t>(expert));
          next[expert] = 0;
          if (k == 0) rank = RankOf(domain, layer, static_cast<int>(expert));
        }
      }
    }
    trace.sequences.push_back(std::move(sequence));
  }
  return trace;
}

RoutingChain::Past RoutingChain::PastOf(const popularity::RoutingView& batch, int64_t t, int layer,
                                        size_t domain) const {
  SY_CHECK(batch.shape == options_.shape);
  std::vector<double> of_domain(popularity_.size());
  Past past;
  for (int seen = 0; seen < layer; ++seen) {
    Transition(domain, seen, past.rank, absl::MakeSpan(of_domain));
    double left = 1;
    for (const int16_t expert : batch.Experts(t, seen)) {
      SY_CHECK(expert >= 0);
      past.likelihood *= of_domain[static_cast<size_t>(expert)] / left;
      left -= of_domain[static_cast<size_t>(expert)];
    }
    past.rank = RankOf(domain, seen, batch.Experts(t, seen)[0]);
  }
  return past;
}

void RoutingChain::NextDistribution(const popularity::RoutingView& batch, int64_t t, int layer,
                                    absl::Span<double> next) const {
  std::vector<double> of_domain(popularity_.size());
  std::fill(next.begin(), next.end(), 0.0);
  double sum = 0;
  for (size_t domain = 0; domain < static_cast<size_t>(options_.num_domains); ++domain) {
    const Past past = PastOf(batch, t, layer, domain);
    Transition(domain, layer, past.rank, absl::MakeSpan(of_domain));
    for (size_t e = 0; e < next.size(); ++e) next[e] += past.likelihood * of_domain[e];
    sum += past.likelihood;
  }
  for (double& share : next) share /= sum;
}

void RoutingChain::SecondNextDistribution(const popularity::RoutingView& batch, int64_t t, int layer,
                                          absl::Span<double> next) const {
  SY_CHECK_GE(layer, 1);
  std::vector<double> between(popularity_.size()), of_domain(popularity_.size());
  std::fill(next.begin(), next.end(), 0.0);
  double sum = 0;
  for (size_t domain = 0; domain < static_cast<size_t>(options_.num_domains); ++domain) {
    const Past past = PastOf(batch, t, layer - 1, domain);
    Transition(domain, layer - 1, past.rank, absl::MakeSpan(between));
    for (size_t via = 0; via < next.size(); ++via) {
      Transition(domain, layer, RankOf(domain, layer - 1, static_cast<int>(via)), absl::MakeSpan(of_domain));
      for (size_t e = 0; e < next.size(); ++e) next[e] += past.likelihood * between[via] * of_domain[e];
    }
    sum += past.likelihood;
  }
  for (double& share : next) share /= sum;
}

}  // namespace switchyard
