#include "workers/moe/popularity/ridge_probe.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::moe {
namespace {

// Rows that are added at once: their features stay in the L2 cache while the sums pass by.
constexpr int64_t kRowsAtOnce = 32;

// rows [begin, begin + count) of `from` as doubles, `stride` apart.
void Widen(const TensorView& from, int64_t begin, int64_t count, int64_t stride, double* to) {
  VisitDType(from.dtype(), [&]<class Elem>() {
    for (int64_t i = 0; i < count; ++i) {
      const Elem* row = from.row<Elem>(begin + i);
      for (int64_t c = 0; c < from.dim(1); ++c)
        to[i * stride + c] = static_cast<double>(static_cast<Acc<Elem>>(row[c]));
    }
  });
}

void SubtractMean(double* row, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += row[i];
  for (int64_t i = 0; i < n; ++i) row[i] -= sum / static_cast<double>(n);
}

// to[c] += scale * from[c]
void AddScaled(double scale, const double* __restrict__ from, int64_t n, double* __restrict__ to) {
  for (int64_t c = 0; c < n; ++c) to[c] += scale * from[c];
}

// gram = Uᵀ U in place, upper triangle (Cholesky; a sum of squares plus λ is positive definite).
void Factorize(ThreadPool& pool, int64_t n, double* gram) {
  for (int64_t k = 0; k < n; ++k) {
    double* const row = gram + k * n;
    const double scale = 1 / std::sqrt(row[k]);
    for (int64_t c = k; c < n; ++c) row[c] *= scale;
    pool.ParallelFor(n - k - 1, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = k + 1 + begin; i < k + 1 + end; ++i) AddScaled(-row[i], row + i, n - i, gram + i * n + i);
    });
  }
}

// (Uᵀ U)⁻¹ · rhs in place, rhs [n, columns].
void SolveFactored(int64_t n, const double* factor, int64_t columns, double* rhs) {
  for (int64_t k = 0; k < n; ++k) {
    double* const row = rhs + k * columns;
    for (int64_t c = 0; c < columns; ++c) row[c] /= factor[k * n + k];
    for (int64_t i = k + 1; i < n; ++i) AddScaled(-factor[k * n + i], row, columns, rhs + i * columns);
  }
  for (int64_t k = n - 1; k >= 0; --k) {
    double* const row = rhs + k * columns;
    for (int64_t i = k + 1; i < n; ++i) AddScaled(-factor[k * n + i], rhs + i * columns, columns, row);
    for (int64_t c = 0; c < columns; ++c) row[c] /= factor[k * n + k];
  }
}

}  // namespace

bool AllFinite(const TensorView& rows) {
  std::vector<double> wide(static_cast<size_t>(rows.dim(1)));
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    Widen(rows, i, 1, rows.dim(1), wide.data());
    if (!std::all_of(wide.begin(), wide.end(), [](double value) { return std::isfinite(value); })) return false;
  }
  return true;
}

RidgeProbe::RidgeProbe(int64_t hidden, int64_t num_experts, int num_targets)
    : width_(hidden + 1),
      num_experts_(num_experts),
      gram_(static_cast<size_t>(width_ * width_)),
      cross_(static_cast<size_t>(num_targets), std::vector<double>(static_cast<size_t>(width_ * num_experts))) {
  SY_CHECK_GE(hidden, 1);
  SY_CHECK_GE(num_experts, 1);
  SY_CHECK_GE(num_targets, 1);
}

absl::Status RidgeProbe::Check(const TensorView& x, const std::vector<TensorView>& logits) const {
  const auto check = [](const char* name, const TensorView& view, int64_t rows, int64_t columns) -> absl::Status {
    if (view.rank() != 2 || view.dim(0) != rows || view.dim(1) != columns || !IsFloating(view.dtype()) ||
        !view.device().is_cpu()) {
      return absl::InvalidArgumentError(absl::StrCat("ridge_probe: ", name, " is ", view.ToString(),
                                                     ", wants floating [", rows, ", ", columns, "] cpu"));
    }
    if (!AllFinite(view)) {
      return absl::InvalidArgumentError(absl::StrCat("ridge_probe: ", name, " has a number that is not finite"));
    }
    return absl::OkStatus();
  };
  if (logits.size() != cross_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ridge_probe: logits of ", logits.size(), " layers for ", cross_.size(), " targets"));
  }
  const int64_t rows = x.rank() == 2 ? x.dim(0) : 0;
  RETURN_IF_ERROR(check("x", x, rows, width_ - 1));
  for (const TensorView& target : logits) RETURN_IF_ERROR(check("logits", target, rows, num_experts_));
  return absl::OkStatus();
}

absl::Status RidgeProbe::Add(const Stream& stream, const TensorView& x, const std::vector<TensorView>& logits) {
  RETURN_IF_ERROR(Check(x, logits));
  std::vector<double> features(static_cast<size_t>(kRowsAtOnce * width_));
  std::vector<std::vector<double>> targets(logits.size(),
                                           std::vector<double>(static_cast<size_t>(kRowsAtOnce * num_experts_)));
  for (int64_t begin = 0; begin < x.dim(0); begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, x.dim(0) - begin);
    Widen(x, begin, count, width_, features.data());
    for (int64_t i = 0; i < count; ++i) features[i * width_ + width_ - 1] = 1;
    for (size_t a = 0; a < logits.size(); ++a) {
      Widen(logits[a], begin, count, num_experts_, targets[a].data());
      for (int64_t i = 0; i < count; ++i) SubtractMean(targets[a].data() + i * num_experts_, num_experts_);
    }
    stream.pool().ParallelFor(width_, 8, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        for (int64_t i = 0; i < count; ++i) {
          const double* const row = features.data() + i * width_;
          AddScaled(row[r], row + r, width_ - r, gram_.data() + r * width_ + r);
          for (size_t a = 0; a < targets.size(); ++a) {
            AddScaled(row[r], targets[a].data() + i * num_experts_, num_experts_, cross_[a].data() + r * num_experts_);
          }
        }
      }
    });
  }
  num_rows_ += x.dim(0);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> RidgeProbe::Solve(const Stream& stream, int target, double lambda) const {
  SY_CHECK_GE(target, 0);
  SY_CHECK_LT(target, static_cast<int>(cross_.size()));
  SY_CHECK(lambda > 0);
  if (num_rows_ < width_) {
    return absl::FailedPreconditionError(
        absl::StrCat("ridge_probe: ", num_rows_, " rows seen, wants at least ", width_, " (hidden size + 1)"));
  }
  std::vector<double> factor = gram_, map = cross_[static_cast<size_t>(target)];
  for (int64_t i = 0; i < width_; ++i) factor[i * width_ + i] += lambda;
  Factorize(stream.pool(), width_, factor.data());
  SolveFactored(width_, factor.data(), num_experts_, map.data());
  Tensor solved(DType::kF64, {num_experts_, width_});
  for (int64_t e = 0; e < num_experts_; ++e) {
    double* const row = solved.view().row<double>(e);
    for (int64_t i = 0; i < width_; ++i) row[i] = map[i * num_experts_ + e];
  }
  return solved;
}

}  // namespace switchyard::moe
