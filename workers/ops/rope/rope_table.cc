// The angles: HF's rope_parameters → frequencies → cos and sin.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/rope/rope.h"
#include "workers/tensor/copy.h"

namespace switchyard::ops {
namespace {

constexpr double kPi = 3.14159265358979323846;

absl::Status Check(const RopeConfig& c) {
  const auto fail = [](const auto&... words) { return absl::InvalidArgumentError(absl::StrCat("rope: ", words...)); };
  if (c.rotary_dim <= 0 || c.rotary_dim % 2 != 0) {
    return fail("rotary_dim must be even and positive, is ", c.rotary_dim);
  }
  if (!(c.theta > 0) || !std::isfinite(c.theta)) return fail("theta must be positive and finite, is ", c.theta);
  if (!(c.factor > 0) || !std::isfinite(c.factor)) return fail("factor must be positive and finite, is ", c.factor);
  const bool needs_original = c.kind == RopeKind::kYarn || c.kind == RopeKind::kLongRope || c.kind == RopeKind::kLlama3;
  if (needs_original && !(c.original_max_positions > 0)) {
    return fail("original_max_positions must be positive, is ", c.original_max_positions);
  }
  if (c.kind == RopeKind::kYarn && !(c.theta > 1)) return fail("yarn needs theta > 1, has ", c.theta);
  if (c.kind == RopeKind::kLlama3 && c.high_freq_factor == c.low_freq_factor) {
    return fail("llama3 needs high_freq_factor and low_freq_factor to differ, both are ", c.low_freq_factor);
  }
  if (c.kind == RopeKind::kLongRope) {
    const std::vector<double>& list = c.use_long_factors ? c.long_factor : c.short_factor;
    if (static_cast<int64_t>(list.size()) != c.rotary_dim / 2) {
      return fail(c.use_long_factors ? "long" : "short", "_factor has ", list.size(), " entries, rotary_dim / 2 is ",
                  c.rotary_dim / 2);
    }
    for (double f : list) {
      if (!(f > 0)) return fail("longrope factors must be positive, one is ", f);
    }
  }
  return absl::OkStatus();
}

double YarnScale(double factor, double k) { return factor <= 1 ? 1.0 : 0.1 * k * std::log(factor) + 1.0; }

double AttentionFactor(const RopeConfig& c) {
  if (c.kind != RopeKind::kYarn && c.kind != RopeKind::kLongRope) return 1.0;
  if (c.attention_factor) return *c.attention_factor;
  if (c.kind == RopeKind::kLongRope) {
    return c.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(c.factor) / std::log(c.original_max_positions));
  }
  if (c.mscale != 0 && c.mscale_all_dim != 0) {
    return YarnScale(c.factor, c.mscale) / YarnScale(c.factor, c.mscale_all_dim);
  }
  return YarnScale(c.factor, 1);
}

// Between `low` and `high` YaRN goes over from the plain frequencies to the interpolated ones.
struct YarnRamp {
  double low, high;
  explicit YarnRamp(const RopeConfig& c) {
    const auto dim_of = [&c](double rotations) {
      return c.rotary_dim * std::log(c.original_max_positions / (rotations * 2 * kPi)) / (2 * std::log(c.theta));
    };
    low = dim_of(c.beta_fast);
    high = dim_of(c.beta_slow);
    if (c.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(c.rotary_dim - 1));
    if (low == high) high += 0.001;
  }
  double At(int64_t j) const { return std::clamp((j - low) / (high - low), 0.0, 1.0); }
};

double Llama3Frequency(const RopeConfig& c, double inv) {
  const double wavelength = 2 * kPi / inv;
  if (wavelength < c.original_max_positions / c.high_freq_factor) return inv;
  if (wavelength > c.original_max_positions / c.low_freq_factor) return inv / c.factor;
  const double s =
      (c.original_max_positions / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
  return (1 - s) * inv / c.factor + s * inv;
}

// Rows from first_row on are positions from first_position on.
struct RowRange {
  int64_t first_row = 0;
  int64_t first_position = 0;
  int64_t count = 0;
};

template <class Acc>
void Fill(const RopeFrequencies& f, const RowRange& range, Tensor* cos, Tensor* sin) {
  const int64_t half = static_cast<int64_t>(f.inv_freq.size());
  for (int64_t i = 0; i < range.count; ++i) {
    const int64_t p = range.first_position + i, row = range.first_row + i;
    for (int64_t j = 0; j < half; ++j) {
      // For fp32 the frequency, the angle and the factor's product are rounded as HF rounds them.
      const Acc angle = static_cast<Acc>(p) * static_cast<Acc>(f.inv_freq[j]);
      const double exact = static_cast<double>(angle);
      const Acc factor = static_cast<Acc>(f.attention_factor);
      cos->data<Acc>()[row * half + j] = static_cast<Acc>(std::cos(exact)) * factor;
      sin->data<Acc>()[row * half + j] = static_cast<Acc>(std::sin(exact)) * factor;
    }
  }
}

// theta^(-2j/d), by way of its inverse and rounded where HF rounds.
double BaseFrequency(const RopeConfig& c, int64_t j, DType acc) {
  const double exponent = 2.0 * j / c.rotary_dim;
  if (acc == DType::kF64) return 1.0 / std::pow(c.theta, exponent);
  return 1.0f / static_cast<float>(std::pow(c.theta, static_cast<double>(static_cast<float>(exponent))));
}

}  // namespace

int64_t RopeConfig::LongAbove(int64_t max_positions) const {
  const bool both = kind == RopeKind::kLongRope && original_max_positions < static_cast<double>(max_positions);
  return both ? static_cast<int64_t>(original_max_positions) : 0;
}

absl::StatusOr<RopeFrequencies> ComputeRopeFrequencies(const RopeConfig& c, DType acc) {
  RETURN_IF_ERROR(Check(c));
  RopeFrequencies out;
  out.attention_factor = AttentionFactor(c);
  const YarnRamp ramp(c);
  for (int64_t j = 0; j < c.rotary_dim / 2; ++j) {
    const double inv = BaseFrequency(c, j, acc);
    switch (c.kind) {
      case RopeKind::kDefault:
        out.inv_freq.push_back(inv);
        break;
      case RopeKind::kLinear:
        out.inv_freq.push_back(inv / c.factor);
        break;
      case RopeKind::kYarn:
        out.inv_freq.push_back(ramp.At(j) * inv / c.factor + (1 - ramp.At(j)) * inv);
        break;
      case RopeKind::kLongRope:
        out.inv_freq.push_back(inv / (c.use_long_factors ? c.long_factor : c.short_factor)[j]);
        break;
      case RopeKind::kLlama3:
        out.inv_freq.push_back(Llama3Frequency(c, inv));
        break;
    }
  }
  return out;
}

absl::StatusOr<RopeTable> RopeTable::Build(const RopeConfig& config, int64_t max_positions, DType acc) {
  if (max_positions < 1 || (acc != DType::kF32 && acc != DType::kF64)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope: max_positions must be positive and the table fp32 or fp64, are ", max_positions, " and ",
                     DTypeName(acc)));
  }
  RopeConfig list = config;
  list.use_long_factors = false;
  ASSIGN_OR_RETURN(const RopeFrequencies base, ComputeRopeFrequencies(list, acc));
  RopeTable table;
  table.max_positions_ = max_positions;
  table.long_above_ = config.LongAbove(max_positions);
  table.cos_ = Tensor(acc, {max_positions + table.long_above_, config.rotary_dim / 2});
  table.sin_ = Tensor(acc, {max_positions + table.long_above_, config.rotary_dim / 2});
  const auto fill = [&](const RopeFrequencies& f, const RowRange& range) {
    if (acc == DType::kF64) return Fill<double>(f, range, &table.cos_, &table.sin_);
    Fill<float>(f, range, &table.cos_, &table.sin_);
  };
  const int64_t above = table.long_above_;
  fill(base, {0, 0, above > 0 ? above : max_positions});
  if (above == 0) return table;
  list.use_long_factors = true;
  ASSIGN_OR_RETURN(const RopeFrequencies stretched, ComputeRopeFrequencies(list, acc));
  fill(stretched, {above, above, max_positions - above});
  fill(stretched, {max_positions, 0, above});
  return table;
}

RopeTable RopeTable::WithoutRotation(int64_t max_positions, DType acc) {
  SY_CHECK_GE(max_positions, 1);
  RopeTable table;
  table.max_positions_ = max_positions;
  table.cos_ = Tensor(acc, {max_positions, 0});
  table.sin_ = Tensor(acc, {max_positions, 0});
  return table;
}

absl::Status RopeTable::MoveTo(const Stream& stream) {
  if (cos_.view().device() == stream.device()) return absl::OkStatus();
  ASSIGN_OR_RETURN(cos_, CopyToDevice(stream, cos_));
  ASSIGN_OR_RETURN(sin_, CopyToDevice(stream, sin_));
  return absl::OkStatus();
}

}  // namespace switchyard::ops
