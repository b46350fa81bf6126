// sum_t = own_t + m_t (of the last columns max(0, .)),  m_t = o_t + kept (m_{t-1} - o_t), cut into runs of rows: each
// begins so many rows before its first that nothing of what is left out weighs anything.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int64_t kRunRows = 64;  // that a thread writes: with the reach before them, two rows are read for each

template <class Elem>
struct FadingSumOp {
  const Elem* both;       // [T, 2E]
  const int32_t* begins;  // [T]
  Elem* sum;              // [T, E]
  int64_t rows, width, both_stride, sum_stride, reach, rectified;
  Elem kept;

  __device__ void operator()(int64_t run, int64_t column) const {
    const int64_t first = run * kRunRows, end = first + kRunRows < rows ? first + kRunRows : rows;
    const int64_t reached = first > reach ? first - reach : 0;
    Elem mean = 0;
    for (int64_t t = reached; t < end; ++t) {
      const Elem* row = both + t * both_stride + column;
      const Elem value = row[width];
      mean = t == reached || begins[t] != 0 ? value : Add(value, Mul(kept, Add(mean, -value)));
      if (t < first) continue;
      const Elem both_sum = Add(row[0], mean);
      sum[t * sum_stride + column] = column >= width - rectified && both_sum < 0 ? Elem{0} : both_sum;
    }
  }
};

template <class Elem>
int Run(const CudaCall& call, const FadingSumArgs& a) {
  const FadingSumOp<Elem> op = {.both = static_cast<const Elem*>(a.both),
                                .begins = a.begins,
                                .sum = static_cast<Elem*>(a.sum),
                                .rows = a.rows,
                                .width = a.width,
                                .both_stride = a.both_stride,
                                .sum_stride = a.sum_stride,
                                .reach = a.reach,
                                .rectified = a.rectified,
                                .kept = static_cast<Elem>(a.kept)};
  return LaunchRows(call, op, (a.rows + kRunRows - 1) / kRunRows, a.width);
}

}  // namespace

int FadingSum(const CudaCall& call, const FadingSumArgs& a) {
  return a.dtype == 1 ? Run<double>(call, a) : Run<float>(call, a);
}

}  // namespace switchyard::ops::cuda
