#include "workers/model/forward/row_adapters.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm/gemm.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::model {
namespace {

constexpr int64_t kRowGrain = 64;  // rows

// Copies rows of x to neighbours.
void Gather(const Stream& stream, absl::Span<const int64_t> rows, const TensorView& x, const TensorView& gathered) {
  const int64_t row_bytes = x.dim(1) * DTypeBytes(x.dtype()), stride = x.row_stride() * DTypeBytes(x.dtype());
  stream.pool().ParallelFor(gathered.dim(0), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(static_cast<char*>(gathered.raw()) + i * row_bytes,
                  static_cast<const char*>(x.raw()) + rows[static_cast<size_t>(i)] * stride, row_bytes);
    }
  });
}

// Row rows[i] of y += scale * row i of sums, in AccDType.
template <class Elem, class Sum>
void AddTo(const Stream& stream, absl::Span<const int64_t> rows, Sum scale, const TensorView& sums,
           const TensorView& y) {
  stream.pool().ParallelFor(sums.dim(0), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Sum* const from = sums.row<Sum>(i);
      Elem* const to = y.row<Elem>(rows[static_cast<size_t>(i)]);
      for (int64_t j = 0; j < y.dim(1); ++j) to[j] = static_cast<Elem>(static_cast<Sum>(to[j]) + scale * from[j]);
    }
  });
}

void Scatter(const Stream& stream, absl::Span<const int64_t> rows, double scale, const TensorView& sums,
             const TensorView& y) {
  VisitDType(y.dtype(),
             [&]<class Elem>() { AddTo<Elem, Acc<Elem>>(stream, rows, static_cast<Acc<Elem>>(scale), sums, y); });
}

}  // namespace

absl::Status RowAdapters::Sort(size_t num_adapters, absl::Span<const int32_t> of_rows) {
  if (begins_.size() == num_adapters + 2 && absl::MakeConstSpan(sorted_) == of_rows) return absl::OkStatus();
  sorted_.clear();
  begins_.assign(num_adapters + 2, 0);
  for (const int32_t adapter : of_rows) {
    if (adapter < 0 || static_cast<size_t>(adapter) > num_adapters) {
      return absl::InternalError(absl::StrCat("a row's adapter is ", adapter, " of ", num_adapters));
    }
    if (adapter > 0) ++begins_[static_cast<size_t>(adapter) + 1];
  }
  for (size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  order_.resize(static_cast<size_t>(begins_.back()));
  // Each begin moves to its end, which is the next one's begin.
  for (size_t t = 0; t < of_rows.size(); ++t) {
    if (of_rows[t] > 0)
      order_[static_cast<size_t>(begins_[static_cast<size_t>(of_rows[t])]++)] = static_cast<int64_t>(t);
  }
  sorted_.assign(of_rows.begin(), of_rows.end());
  return absl::OkStatus();
}

absl::Status RowAdapters::AddOne(const Stream& stream, const AdapterWeights& adapter, absl::Span<const int64_t> rows,
                                 const TensorView& gathered, const TensorView& y) {
  const int64_t count = gathered.dim(0);
  const TensorView u = u_.Rows(count, adapter.a.n(), adapter.a.dtype());
  RETURN_IF_ERROR(ops::Gemm(stream, {}, gathered, adapter.a, TensorView(), u));
  const TensorView sums = sums_.Rows(count, adapter.b.n(), AccDType(adapter.b.dtype()));
  RETURN_IF_ERROR(ops::Gemm(stream, {}, u, adapter.b, TensorView(), sums));
  Scatter(stream, rows, adapter.scale, sums, y.Columns(adapter.first_column, adapter.b.n()));
  return absl::OkStatus();
}

absl::Status RowAdapters::Add(const Stream& stream, absl::Span<const LayerAdapter> adapters,
                              std::vector<AdapterWeights> LayerAdapter::*projections, absl::Span<const int32_t> of_rows,
                              const TensorView& x, const TensorView& y) {
  if (adapters.empty() || of_rows.empty()) return absl::OkStatus();
  SY_CHECK(stream.device().is_cpu());
  SY_CHECK_EQ(static_cast<int64_t>(of_rows.size()), x.dim(0));
  RETURN_IF_ERROR(Sort(adapters.size(), of_rows));
  int64_t begin = 0;
  for (size_t i = 0; i < adapters.size(); ++i) {
    const int64_t end = begins_[i + 1], count = end - begin;
    const auto rows = absl::MakeConstSpan(order_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    begin = end;
    const std::vector<AdapterWeights>& of_adapter = adapters[i].*projections;
    if (count == 0 || of_adapter.empty()) continue;
    const bool neighbours = rows.back() - rows.front() + 1 == count;
    const TensorView gathered = neighbours ? x.Rows(rows.front(), count) : x_.Rows(count, x.dim(1), x.dtype());
    if (!neighbours) Gather(stream, rows, x, gathered);
    for (const AdapterWeights& adapter : of_adapter) RETURN_IF_ERROR(AddOne(stream, adapter, rows, gathered, y));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::model
