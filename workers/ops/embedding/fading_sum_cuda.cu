// sum_t = own_t + m_t (of the last columns max(0, .)),  m_t = o_t + kept (m_{t-1} - o_t), cut into runs of rows: each
// begins so many rows before its first that nothing of what is left out weighs anything.
#include "workers/ops/cuda/rows_cuda.h"

namespace switchyard::ops::cuda {
namespace {

constexpr int64_t kRunRows = 64;  // that a thread writes: with the reach before them, two rows are read for each

template <class Elem>
struct FadingSumOp {
  FadingSumArgs a;

  __device__ void operator()(int64_t run, int64_t column) const {
    const int64_t first = run * kRunRows, end = first + kRunRows < a.rows ? first + kRunRows : a.rows;
    const int64_t reached = first > a.reach ? first - a.reach : 0;
    const Elem kept = static_cast<Elem>(a.kept);
    Elem mean = 0;
    for (int64_t t = reached; t < end; ++t) {
      const Elem* row = static_cast<const Elem*>(a.both) + t * a.both_stride + column;
      const Elem value = row[a.width];
      mean = t == reached || a.begins[t] != 0 ? value : Add(value, Mul(kept, Add(mean, -value)));
      if (t < first) continue;
      const Elem both_sum = Add(row[0], mean);
      const bool hidden = column >= a.width - a.rectified && both_sum < 0;
      static_cast<Elem*>(a.sum)[t * a.sum_stride + column] = hidden ? Elem{0} : both_sum;
    }
  }
};

template <class Elem>
int Run(const CudaCall& call, const FadingSumArgs& a) {
  return LaunchRows(call, FadingSumOp<Elem>{a}, (a.rows + kRunRows - 1) / kRunRows, a.width);
}

}  // namespace

int FadingSum(const CudaCall& call, const FadingSumArgs& a) {
  return a.dtype == 1 ? Run<double>(call, a) : Run<float>(call, a);
}

}  // namespace switchyard::ops::cuda
