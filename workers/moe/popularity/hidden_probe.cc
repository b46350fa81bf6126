#include "workers/moe/popularity/hidden_probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kHeldOut = 16;       // one row of so many
constexpr double kConstant = 1e-6;     // deviation by mean, below which a column counts as constant
constexpr int64_t kGradientRows = 64;  // whose gradient is one sum, so that sums do not depend on threads

// to[c] += scale * from[c]
void AddScaled(float scale, const float* __restrict__ from, int64_t n, float* __restrict__ to) {
  for (int64_t c = 0; c < n; ++c) to[c] += scale * from[c];
}

// In [-1, 1).
float UniformAt(uint64_t i) {
  return static_cast<float>(static_cast<double>(SplitMix(i * kSplitMixStep) >> 11) * 0x1p-52 - 1);
}

// Columns' means and deviations.
struct Scale {
  std::vector<double> mean, inverse;  // [D]; 0 where a column is constant
};

// The steps' state.  Parameters in one run: first [D + 1, E + U], the bias row last, columns W's then A's; out [U, E].
class Steps {
 public:
  Steps(int64_t features, int64_t experts, const HiddenFitOptions& options)
      : features_(features),
        experts_(experts),
        units_(options.num_units),
        columns_(experts + units_),
        first_size_((features + 1) * columns_),
        parameters_(static_cast<size_t>(first_size_ + units_ * experts)),
        mean_(parameters_.size()),
        square_(parameters_.size()) {
    const float reach = std::sqrt(3.0f / static_cast<float>(features));
    for (int64_t d = 0; d < features; ++d) {
      for (int64_t u = 0; u < units_; ++u)
        parameters_[d * columns_ + experts + u] = reach * UniformAt(static_cast<uint64_t>(d * units_ + u));
    }
  }

  // Writes what is added to the map's logits of a scaled row z [D] to added [E], and sums [E + U].
  void Forward(const float* z, float* sums, float* added) const {
    const float* const bias = parameters_.data() + features_ * columns_;
    std::copy(bias, bias + columns_, sums);
    for (int64_t d = 0; d < features_; ++d) AddScaled(z[d], parameters_.data() + d * columns_, columns_, sums);
    std::copy(sums, sums + experts_, added);
    for (int64_t u = 0; u < units_; ++u) {
      float& sum = sums[experts_ + u];
      sum = std::max(sum, 0.0f);
      if (sum > 0) AddScaled(sum, parameters_.data() + first_size_ + u * experts_, experts_, added);
    }
  }

  // Adds a row's gradient of half the squared error.
  void Backward(const float* z, const float* residual, float* sums, float* added, float* gradient) const {
    Forward(z, sums, added);
    for (int64_t e = 0; e < experts_; ++e) added[e] -= residual[e];
    for (int64_t u = 0; u < units_; ++u) {
      float& sum = sums[experts_ + u];
      if (sum <= 0) continue;
      const float* const out = parameters_.data() + first_size_ + u * experts_;
      AddScaled(sum, added, experts_, gradient + first_size_ + u * experts_);
      sum = 0;
      for (int64_t e = 0; e < experts_; ++e) sum += out[e] * added[e];
    }
    std::copy(added, added + experts_, sums);
    for (int64_t d = 0; d < features_; ++d) AddScaled(z[d], sums, columns_, gradient + d * columns_);
    AddScaled(1, sums, columns_, gradient + features_ * columns_);
  }

  // Adam by the blocks' sums of `rows` rows.
  void Take(const Stream& stream, absl::Span<const std::vector<float>> blocks, int64_t rows, double rate) {
    constexpr double kMeanKept = 0.9, kSquareKept = 0.999, kEpsilon = 1e-8;
    mean_weight_ *= kMeanKept;
    square_weight_ *= kSquareKept;
    stream.pool().ParallelFor(static_cast<int64_t>(parameters_.size()), 4096, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double gradient = 0;
        for (const std::vector<float>& block : blocks) gradient += block[i];
        gradient /= static_cast<double>(rows);
        mean_[i] = static_cast<float>(kMeanKept * mean_[i] + (1 - kMeanKept) * gradient);
        square_[i] = static_cast<float>(kSquareKept * square_[i] + (1 - kSquareKept) * gradient * gradient);
        const double root = std::sqrt(square_[i] / (1 - square_weight_)) + kEpsilon;
        parameters_[i] -= static_cast<float>(rate * mean_[i] / (1 - mean_weight_) / root);
      }
    });
  }

  int64_t num_parameters() const { return static_cast<int64_t>(parameters_.size()); }
  int64_t num_columns() const { return columns_; }
  int64_t num_experts() const { return experts_; }

  // Returns the layer for rows as they are, not scaled, with the map.
  HiddenLayer Layer(const TensorView& map, const Scale& scale) const {
    HiddenLayer layer{.num_units = units_,
                      .linear = Tensor(DType::kF64, {columns_, features_ + 1}),
                      .out = Tensor(DType::kF64, {experts_, units_})};
    for (int64_t c = 0; c < columns_; ++c) {
      double* const row = layer.linear.view().row<double>(c);
      double bias = parameters_[features_ * columns_ + c];
      for (int64_t d = 0; d < features_; ++d) {
        row[d] = parameters_[d * columns_ + c] * scale.inverse[d];
        bias -= row[d] * scale.mean[d];
      }
      row[features_] = bias;
      if (c < experts_) {
        for (int64_t d = 0; d <= features_; ++d) row[d] += map.row<double>(c)[d];
      }
    }
    for (int64_t e = 0; e < experts_; ++e) {
      for (int64_t u = 0; u < units_; ++u)
        layer.out.view().row<double>(e)[u] = parameters_[first_size_ + u * experts_ + e];
    }
    return layer;
  }

 private:
  const int64_t features_, experts_, units_, columns_, first_size_;
  std::vector<float> parameters_, mean_, square_;
  double mean_weight_ = 1, square_weight_ = 1;  // what is left of the zeros that the means began with
};

// The data of the fit: kept rows, scaled, and what the map misses of them.
class Residuals {
 public:
  Residuals(const Stream& stream, const std::vector<float>& rows, int64_t features, const TensorView& map)
      : rows_(rows), features_(features), experts_(map.dim(0)), missed_(static_cast<size_t>(size() * experts_)) {
    scale_ = {std::vector<double>(static_cast<size_t>(features)), std::vector<double>(static_cast<size_t>(features))};
    stream.pool().ParallelFor(features, 16, [&](int64_t begin, int64_t end) {
      for (int64_t d = begin; d < end; ++d) MeasureColumn(d);
    });
    stream.pool().ParallelFor(size(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t e = 0; e < experts_; ++e) missed_[i * experts_ + e] = Missed(i, map.row<double>(e), e);
      }
    });
  }

  int64_t size() const { return static_cast<int64_t>(rows_.size()) / (features_ + experts_); }
  const Scale& scale() const { return scale_; }
  const float* missed(int64_t i) const { return missed_.data() + i * experts_; }  // [E]
  void TakeScaled(int64_t i, float* z) const {                                    // [D]
    const float* const row = Row(i);
    for (int64_t d = 0; d < features_; ++d) z[d] = static_cast<float>((row[d] - scale_.mean[d]) * scale_.inverse[d]);
  }

 private:
  const float* Row(int64_t i) const { return rows_.data() + i * (features_ + experts_); }
  void MeasureColumn(int64_t d) {
    const auto count = static_cast<double>(size());
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < size(); ++i) sum += Row(i)[d];
    const double mean = scale_.mean[d] = sum / count;
    for (int64_t i = 0; i < size(); ++i) squares += (Row(i)[d] - mean) * (Row(i)[d] - mean);
    // The variation of a constant column is rounding.
    const bool varies = squares > kConstant * kConstant * count * mean * mean;
    scale_.inverse[d] = varies ? 1 / std::sqrt(squares / count) : 0;
  }
  float Missed(int64_t i, const double* of_map, int64_t e) const {
    double sum = of_map[features_];
    for (int64_t d = 0; d < features_; ++d) sum += of_map[d] * Row(i)[d];
    return static_cast<float>(Row(i)[features_ + e] - sum);
  }

  const std::vector<float>& rows_;
  const int64_t features_, experts_;
  Scale scale_;
  std::vector<float> missed_;  // [kept, E]
};

// Another order each epoch (Fisher and Yates).
void Shuffle(uint64_t epoch, std::vector<int64_t>* rows) {
  for (size_t i = rows->size(); i > 1; --i) {
    const uint64_t drawn = SplitMix((epoch << 40 | i) * kSplitMixStep);
    std::swap((*rows)[i - 1], (*rows)[drawn % i]);
  }
}

// A thread's memory for a row.
struct RowMemory {
  RowMemory(int64_t features, int64_t columns, int64_t experts) : z(features), sums(columns), added(experts) {}
  std::vector<float> z, sums, added;
};

void TakeEpochs(const Stream& stream, const Residuals& residuals, std::vector<int64_t> rows,
                const HiddenFitOptions& options, Steps* steps) {
  const auto features = static_cast<int64_t>(residuals.scale().mean.size());
  const auto total = static_cast<int64_t>(rows.size());
  const int64_t per_epoch = (total + options.batch_rows - 1) / options.batch_rows;
  std::vector<std::vector<float>> blocks(static_cast<size_t>((options.batch_rows + kGradientRows - 1) / kGradientRows));
  for (int64_t step = 0; step < options.num_epochs * per_epoch; ++step) {
    const int64_t begin = step % per_epoch * options.batch_rows;
    if (begin == 0) Shuffle(static_cast<uint64_t>(step / per_epoch), &rows);
    const int64_t count = std::min(options.batch_rows, total - begin);
    const int64_t num_blocks = (count + kGradientRows - 1) / kGradientRows;
    stream.pool().Run(num_blocks, [&](int64_t block) {
      std::vector<float>& gradient = blocks[static_cast<size_t>(block)];
      gradient.assign(static_cast<size_t>(steps->num_parameters()), 0);
      RowMemory row(features, steps->num_columns(), steps->num_experts());
      for (int64_t i = block * kGradientRows; i < std::min(count, (block + 1) * kGradientRows); ++i) {
        const int64_t at = rows[static_cast<size_t>(begin + i)];
        residuals.TakeScaled(at, row.z.data());
        steps->Backward(row.z.data(), residuals.missed(at), row.sums.data(), row.added.data(), gradient.data());
      }
    });
    const double left = 1 - static_cast<double>(step) / static_cast<double>(options.num_epochs * per_epoch);
    steps->Take(stream, absl::MakeConstSpan(blocks).first(static_cast<size_t>(num_blocks)), count, options.rate * left);
  }
}

// Whether the rows are predicted better than by the map alone.
bool IsBetter(const Residuals& residuals, const std::vector<int64_t>& rows, const Steps& steps) {
  double with = 0, without = 0;
  RowMemory row(static_cast<int64_t>(residuals.scale().mean.size()), steps.num_columns(), steps.num_experts());
  for (const int64_t at : rows) {
    residuals.TakeScaled(at, row.z.data());
    steps.Forward(row.z.data(), row.sums.data(), row.added.data());
    const float* const missed = residuals.missed(at);
    for (int64_t e = 0; e < steps.num_experts(); ++e) {
      const double error = missed[e] - row.added[e];
      with += error * error;
      without += static_cast<double>(missed[e]) * missed[e];
    }
  }
  return with < without;
}

}  // namespace

HiddenProbe::HiddenProbe(int64_t num_features, int64_t num_experts, int64_t max_rows)
    : num_features_(num_features), num_experts_(num_experts), max_rows_(max_rows) {
  SY_CHECK(num_features >= 1 && num_experts >= 1 && max_rows >= 1);
  rows_.reserve(static_cast<size_t>(max_rows * width()));
}

int64_t HiddenProbe::BytesOfRow(int64_t num_features, int64_t num_experts) {
  return static_cast<int64_t>(sizeof(float)) * (num_features + num_experts);
}

void HiddenProbe::Add(const TensorView& features, const TensorView& logits) {
  SY_CHECK(features.dim(1) == num_features_ && logits.dim(1) == num_experts_);
  SY_CHECK_EQ(features.dim(0), logits.dim(0));
  std::vector<float> row(static_cast<size_t>(width()));
  const auto widen = [](const TensorView& from, int64_t i, float* to) {
    VisitDType(from.dtype(), [&]<class Elem>() {
      for (int64_t c = 0; c < from.dim(1); ++c)
        to[c] = static_cast<float>(static_cast<Acc<Elem>>(from.row<Elem>(i)[c]));
    });
  };
  for (int64_t i = 0; i < features.dim(0); ++i, ++num_seen_) {
    int64_t place = num_seen_;
    if (place >= max_rows_) {
      const uint64_t drawn = SplitMix(static_cast<uint64_t>(num_seen_) * kSplitMixStep);
      place = static_cast<int64_t>(drawn % static_cast<uint64_t>(num_seen_ + 1));
      if (place >= max_rows_) continue;
    }
    float* const y = row.data() + num_features_;
    widen(features, i, row.data());
    widen(logits, i, y);
    const double mean = std::accumulate(y, y + num_experts_, 0.0) / static_cast<double>(num_experts_);
    for (int64_t e = 0; e < num_experts_; ++e) y[e] -= static_cast<float>(mean);
    if (place == num_kept()) rows_.resize(rows_.size() + row.size());
    std::copy(row.begin(), row.end(), rows_.begin() + place * width());
  }
}

std::optional<HiddenLayer> HiddenProbe::Fit(const Stream& stream, const TensorView& map,
                                            const HiddenFitOptions& options) const {
  SY_CHECK(map.dim(0) == num_experts_ && map.dim(1) == num_features_ + 1);
  SY_CHECK(options.num_units >= 1 && options.num_epochs >= 1 && options.batch_rows >= 1);
  std::vector<int64_t> fitted, held_out;
  for (int64_t i = 0; i < num_kept(); ++i) (i % kHeldOut == kHeldOut - 1 ? held_out : fitted).push_back(i);
  const Residuals residuals(stream, rows_, num_features_, map);
  Steps steps(num_features_, num_experts_, options);
  TakeEpochs(stream, residuals, std::move(fitted), options, &steps);
  if (!IsBetter(residuals, held_out, steps)) return std::nullopt;
  return steps.Layer(map, residuals.scale());
}

}  // namespace switchyard::moe
