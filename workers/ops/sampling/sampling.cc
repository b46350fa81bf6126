#include "workers/ops/sampling/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/core/kernels.h"
#include "workers/ops/core/op_checks.h"
#include "workers/ops/sampling/random.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::ops {
namespace {

constexpr double kGreedyBelow = 1e-5;
// Up to so many wanted items a heap that scans all is faster than partitioning all.
constexpr int64_t kHeapLimit = 1024;

// What the bits of eight tokens add to their logits: 0 where one is set, else -Inf.  A look-up has no branches.
template <class Acc>
constexpr auto AddedByBits() {
  std::array<std::array<Acc, 8>, 256> table = {};
  for (size_t bits = 0; bits < table.size(); ++bits) {
    for (size_t i = 0; i < 8; ++i) table[bits][i] = ((bits >> i) & 1) != 0 ? 0 : -std::numeric_limits<Acc>::infinity();
  }
  return table;
}
template <class Acc>
constexpr auto kAdded = AddedByBits<Acc>();

// One row of logits; buffers of the thread, so that a steady step allocates nothing.
template <class Acc>
class Row {
 public:
  Row(const Acc* logits, int64_t size)
      : raw_(logits), logits_(logits), size_(size), stats_(CpuKernels().logit_stats(Code(), logits, size)) {}

  bool broken() const { return stats_.broken; }

  batching::PositionLogprobs Logprobs(int32_t token, int32_t num_top) const {
    const LogitStats stats = CpuKernels().logit_stats(Code(), raw_, size_);
    const double log_sum = stats.max + std::log(CpuKernels().exp_sum(Code(), raw_, size_, stats.max, 1.0, nullptr));
    const auto entry = [&](int32_t id) {
      const Acc logit = raw_[id];
      const int64_t above = std::count_if(raw_, raw_ + size_, [logit](Acc other) { return other > logit; });
      return batching::TokenLogprob{
          .token = id, .logprob = static_cast<float>(logit - log_sum), .rank = static_cast<int32_t>(above + 1)};
    };
    batching::PositionLogprobs out{.chosen = entry(token), .top = {}};
    if (num_top <= 0) return out;
    SortLargest(raw_, std::min<int64_t>(num_top, size_));
    for (int64_t i = 0; i < std::min<int64_t>(num_top, size_); ++i) out.top.push_back(entry(order()[i]));
    return out;
  }

  // Token mask, penalties, bias, min_tokens mask: on a copy, made only if something changes.
  void Adjust(const batching::SamplingParams& p, const TokenHistory& history, const grammar::TokenMask* mask) {
    const bool repeats = p.repetition_penalty != 1.0;
    const bool penalties = repeats || p.presence_penalty != 0 || p.frequency_penalty != 0;
    const bool masked = history.num_output() < p.min_tokens && !p.stop_ids.empty();
    if (!penalties && !masked && p.logit_bias.empty() && mask == nullptr) return;
    std::vector<Acc>& copy = Buffers().adjusted;
    if (mask == nullptr) {
      copy.assign(raw_, raw_ + size_);
    } else {
      CopyAllowed(*mask, &copy);
    }
    if (penalties) {
      for (const auto& [id, output_count] : history.output_counts()) {
        if (InVocabulary(id)) copy[id] = Penalized(copy[id], p, output_count);
      }
    }
    for (const auto& [id, bias] : p.logit_bias) {
      if (InVocabulary(id)) copy[id] = Capped(copy[id] + bias);
    }
    if (masked && (mask == nullptr || AnyButStops(copy, p.stop_ids))) {
      for (const int32_t id : p.stop_ids) {
        if (InVocabulary(id)) copy[id] = -std::numeric_limits<Acc>::infinity();
      }
    }
    logits_ = copy.data();
    stats_ = CpuKernels().logit_stats(Code(), logits_, size_);
  }

  // REQUIRES: !broken().
  int32_t Choose(const batching::SamplingParams& p, double uniform) {
    if (p.temperature < kGreedyBelow) return Greedy();
    std::vector<Acc>& weights = Buffers().weights;
    weights.resize(size_);
    const double total = CpuKernels().exp_sum(Code(), logits_, size_, stats_.max, 1.0 / p.temperature, weights.data());
    const bool top_k = p.top_k > 0 && p.top_k < size_;
    if (!top_k && p.top_p >= 1.0) {
      // min_p alone needs no order: a token's weight is its probability relative to the largest.
      return Draw(uniform, size_, p.min_p, [](int64_t i) { return static_cast<int32_t>(i); });
    }
    const int64_t kept = KeepLargest(top_k ? p.top_k : size_, top_k, p.top_p, total);
    return Draw(uniform, kept, p.min_p, [order = order()](int64_t i) { return order[i]; });
  }

 private:
  struct ThreadBuffers {
    std::vector<Acc> adjusted, weights;
    std::vector<int32_t> order;
  };
  static ThreadBuffers& Buffers() {
    thread_local ThreadBuffers buffers;
    return buffers;
  }
  static constexpr uint8_t Code() { return static_cast<uint8_t>(DTypeOf<Acc>::value); }
  static const int32_t* order() { return Buffers().order.data(); }
  bool InVocabulary(int32_t id) const { return id >= 0 && id < size_; }

  // Whether min_tokens leaves a token that may be drawn.
  static bool AnyButStops(const std::vector<Acc>& logits, const std::vector<int32_t>& stop_ids) {
    for (size_t id = 0; id < logits.size(); ++id) {
      const bool may_be_drawn = logits[id] > -std::numeric_limits<Acc>::infinity();
      if (may_be_drawn && std::find(stop_ids.begin(), stop_ids.end(), static_cast<int32_t>(id)) == stop_ids.end())
        return true;
    }
    return false;
  }

  // The others become -Inf.
  void CopyAllowed(const grammar::TokenMask& mask, std::vector<Acc>* copy) const {
    constexpr Acc kNever = -std::numeric_limits<Acc>::infinity();
    if (mask.bits.empty()) {
      copy->assign(size_, kNever);
      for (const int32_t id : mask.ids) {
        if (InVocabulary(id)) (*copy)[id] = raw_[id];
      }
      return;
    }
    copy->resize(size_);
    Acc* const to = copy->data();
    const int64_t whole = std::min<int64_t>(std::ssize(mask.bits), size_ / 8) * 8;
    for (int64_t first = 0; first < whole; first += 8) {
      const auto& added = kAdded<Acc>[static_cast<uint8_t>(mask.bits[first / 8])];
      for (int64_t i = 0; i < 8; ++i) to[first + i] = raw_[first + i] + added[i];
    }
    for (int64_t id = whole; id < size_; ++id) {
      const bool fits = id / 8 < std::ssize(mask.bits) && ((mask.bits[id / 8] >> (id % 8)) & 1) != 0;
      to[id] = fits ? raw_[id] : kNever;
    }
  }

  static Acc Penalized(Acc logit, const batching::SamplingParams& p, int32_t output_count) {
    // A penalty near 0 must not become 0 in Acc: 0 · -Inf is NaN.
    const Acc repetition = std::max(static_cast<Acc>(p.repetition_penalty), std::numeric_limits<Acc>::min());
    logit = logit > 0 ? Capped(logit / repetition) : logit * repetition;
    if (output_count > 0) logit -= static_cast<Acc>(p.presence_penalty + p.frequency_penalty * output_count);
    return logit;
  }
  // A request's penalties and bias raise a logit to the largest number at most, never to Inf, which marks a model's
  // fault.
  static Acc Capped(Acc logit) { return std::min(logit, std::numeric_limits<Acc>::max()); }

  int32_t Greedy() const {
    const Acc max = static_cast<Acc>(stats_.max);
    return static_cast<int32_t>(std::find(logits_, logits_ + size_, max) - logits_);
  }

  // order()[0, count) become the ids of the largest values, falling, ties by rising id.
  void SortLargest(const Acc* values, int64_t count) const {
    std::vector<int32_t>& order = Buffers().order;
    order.resize(size_);
    std::iota(order.begin(), order.end(), 0);
    const auto before = [values](int32_t a, int32_t b) {
      return values[a] != values[b] ? values[a] > values[b] : a < b;
    };
    if (count <= kHeapLimit) {
      std::partial_sort(order.begin(), order.begin() + count, order.end(), before);
    } else {
      if (count < size_) std::nth_element(order.begin(), order.begin() + count, order.end(), before);
      std::sort(order.begin(), order.begin() + count, before);
    }
  }

  // top_k, then top_p: returns how many of order() stay.  Without top_k the nucleus is looked for in ever longer
  // prefixes, as it is short nearly always.
  int64_t KeepLargest(int64_t most, bool top_k, double top_p, double total) {
    const std::vector<Acc>& weights = Buffers().weights;
    for (int64_t count = top_k ? most : std::min<int64_t>(most, 128);; count = std::min(most, count * 8)) {
      SortLargest(logits_, count);
      double kept_total = total;
      if (top_k) {
        kept_total = 0;
        for (int64_t i = 0; i < count; ++i) kept_total += weights[order()[i]];
      }
      double sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        sum += weights[order()[i]];
        if (top_p < 1.0 && sum >= top_p * kept_total) return i + 1;
      }
      if (count == most) return count;
    }
  }

  // The token at which the running sum of the weights, in the order of id_at, passes uniform · their total.
  template <class IdAt>
  int32_t Draw(double uniform, int64_t count, double min_p, IdAt id_at) const {
    const std::vector<Acc>& weights = Buffers().weights;
    const auto weight_at = [&](int64_t i) -> double {
      const Acc weight = weights[id_at(i)];
      return weight >= min_p ? weight : 0;
    };
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += weight_at(i);
    double sum = 0;
    int32_t last = -1;
    for (int64_t i = 0; i < count; ++i) {
      const double weight = weight_at(i);
      if (weight <= 0) continue;
      sum += weight;
      last = id_at(i);
      if (sum > uniform * total) return last;
    }
    return last;
  }

  const Acc* raw_;     // [size]
  const Acc* logits_;  // [size] raw_ or the adjusted copy
  int64_t size_;
  LogitStats stats_;  // of logits_
};

template <class Acc>
void SampleRow(const Acc* logits, int64_t size, const SampleRequest& request, SampleOutcome* outcome) {
  const batching::SamplingParams& p = *request.params;
  *outcome = {.status = batching::ItemStatus::kNonFinite, .token = -1, .logprobs = {}};
  Row<Acc> row(logits, size);
  if (row.broken()) return;
  row.Adjust(p, *request.history, request.mask);
  if (row.broken()) return;
  const double uniform = SampleUniform(p.seed, p.choice, static_cast<uint32_t>(request.history->num_output()));
  outcome->status = batching::ItemStatus::kOk;
  outcome->token = row.Choose(p, uniform);
  if (p.num_logprobs >= 0) outcome->logprobs = row.Logprobs(outcome->token, p.num_logprobs);
}

absl::Status CheckLogits(const OpSite& at, const TensorView& logits, size_t requests, size_t results) {
  RETURN_IF_ERROR(ExpectFloatMatrix(at, "logits", logits));
  RETURN_IF_ERROR(ExpectView(at, "logits", logits, AccDType(logits.dtype()), logits.shape()));
  if (logits.dim(1) < 1 || static_cast<int64_t>(requests) != logits.dim(0) || results != requests) {
    return absl::InvalidArgumentError(absl::StrCat(at.op, ": ", logits.ToString(), " logits, ", requests, " requests, ",
                                                   results, " results do not fit"));
  }
  return absl::OkStatus();
}

// Calls fn.operator()<Acc>(row, logits of the row) for every row, in parallel.
template <class Fn>
void ForRows(const Stream& stream, const TensorView& logits, const Fn& fn) {
  stream.pool().Run(logits.dim(0), [&](int64_t i) {
    if (logits.dtype() == DType::kF64) return fn(i, logits.row<double>(i));
    fn(i, logits.row<float>(i));
  });
}

}  // namespace

void TokenHistory::Reset(absl::Span<const int32_t> tokens, int64_t num_prompt_tokens) {
  output_counts_.clear();
  num_output_ = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (static_cast<int64_t>(i) < num_prompt_tokens) {
      output_counts_[tokens[i]];  // present, count 0
    } else {
      AppendOutput(tokens[i]);
    }
  }
}

void TokenHistory::AppendOutput(int32_t token) {
  ++output_counts_[token];
  ++num_output_;
}

absl::Status SampleTokens(const Stream& stream, const TensorView& logits, absl::Span<const SampleRequest> requests,
                          absl::Span<SampleOutcome> outcomes) {
  const OpSite at = {"sampling", Device::Cpu()};
  RETURN_IF_ERROR(CheckLogits(at, logits, requests.size(), outcomes.size()));
  ForRows(stream, logits,
          [&](int64_t i, const auto* row) { SampleRow(row, logits.dim(1), requests[i], &outcomes[i]); });
  return absl::OkStatus();
}

absl::Status TokenLogprobs(const Stream& stream, const TensorView& logits, absl::Span<const LogprobRequest> requests,
                           absl::Span<batching::PositionLogprobs> logprobs, absl::Span<batching::ItemStatus> statuses) {
  const OpSite at = {"logprobs", Device::Cpu()};
  RETURN_IF_ERROR(CheckLogits(at, logits, requests.size(), logprobs.size()));
  if (!statuses.empty() && statuses.size() != requests.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs: ", statuses.size(), " statuses for ", requests.size(), " requests"));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].token < 0 || requests[i].token >= logits.dim(1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("logprobs: token ", requests[i].token, " of row ", i, " is outside [0, ", logits.dim(1), ")"));
    }
  }
  ForRows(stream, logits, [&]<class Acc>(int64_t i, const Acc* values) {
    const Row<Acc> row(values, logits.dim(1));
    logprobs[i] = row.broken() ? batching::PositionLogprobs{} : row.Logprobs(requests[i].token, requests[i].num_top);
    if (!statuses.empty()) statuses[i] = row.broken() ? batching::ItemStatus::kNonFinite : batching::ItemStatus::kOk;
  });
  return absl::OkStatus();
}

}  // namespace switchyard::ops
