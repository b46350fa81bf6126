// One sequence and kv head, tile by tile of 64 queries and 64 keys, in AccDType throughout:
//   first  rows' maxima and sums of S = Q Kᵀ · scale, so that P = e^(S - max) / sum; delta = Σ_d dO · O
//   then   dV += Pᵀ dO;   dP = dO Vᵀ;   dS = P · (dP - delta) · scale;   dK += dSᵀ Q;   dQ += dS K
// With dropout by factors M, 0 or 1 / (1 - rate), O = (M · P) V, so that delta is right as it is, and
//          dV += (M · P)ᵀ dO;   dS = P · (M · dP - delta) · scale
//
// Heads of the group, then key tiles, then query tiles, each rising: one order for every sum.  Rows and keys past the
// end, and keys that a row does not see, have P = 0.
#include "workers/ops/attention/attention_layout.h"
#include "workers/ops/core/kernels_impl.h"
#include "workers/ops/dropout/counter_random.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

constexpr int64_t kTile = 64;
// Rows of a block of sums, each of two vectors: as many as registers hold.
#if defined(__AVX512F__)
constexpr int kBlockRows = 8;
#else
constexpr int kBlockRows = 4;
#endif

// The left side of a product: element (row, depth) is at[row * row_stride + depth * depth_stride].
template <class Acc>
struct Left {
  const Acc* at;
  int64_t row_stride, depth_stride, depth;
};

template <int kRows, int kVecs, bool kAdd, class Acc>
SY_INLINE void Block(const Left<Acc>& a, const Acc* b, int64_t b_stride, Acc* c, int64_t c_stride) {
  constexpr int kN = Lanes<Acc>::kCount;
  VecT<Acc> sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kVecs; ++i) sum[r][i] = kAdd ? Load(c + r * c_stride + i * kN) : VecT<Acc>{};
  }
  for (int64_t k = 0; k < a.depth; ++k) {
    VecT<Acc> right[kVecs];
#pragma GCC unroll 2
    for (int i = 0; i < kVecs; ++i) right[i] = Load(b + k * b_stride + i * kN);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const VecT<Acc> left = Splat(a.at[r * a.row_stride + k * a.depth_stride]);
#pragma GCC unroll 2
      for (int i = 0; i < kVecs; ++i) sum[r][i] = Fma(left, right[i], sum[r][i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int i = 0; i < kVecs; ++i) Store(sum[r][i], c + r * c_stride + i * kN);
  }
}

// c[rows, width] (+)= a · b[depth, width]; b's and c's rows are `width` apart, a whole number of vectors.  Rows are
// computed in whole blocks, as there is room for 64.
template <bool kAdd, class Acc>
void Multiply(const Left<Acc>& a, const Acc* b, Acc* c, int64_t rows, int64_t width) {
  constexpr int kN = Lanes<Acc>::kCount;
  for (int64_t r = 0; r < rows; r += kBlockRows) {
    const Left<Acc> part = {a.at + r * a.row_stride, a.row_stride, a.depth_stride, a.depth};
    Acc* const to = c + r * width;
    int64_t j = 0;
    for (; j + 2 * kN <= width; j += 2 * kN) Block<kBlockRows, 2, kAdd>(part, b + j, width, to + j, width);
    for (; j < width; j += kN) Block<kBlockRows, 1, kAdd>(part, b + j, width, to + j, width);
  }
}

template <class Elem>
class Task {
 public:
  using AccType = AccT<Elem>;
  using Vec = VecT<Elem>;
  static constexpr int kN = Lanes<Elem>::kCount;

  explicit Task(const AttentionBackwardTask& t)
      : t_(t), l_(LayOutAttentionBackward(t.rows, t.head_dim)), base_(static_cast<AccType*>(t.scratch)) {}

  void Run() {
    Zero(base_ + l_.dk, l_.padded_rows * l_.padded_dim);
    Zero(base_ + l_.dv, l_.padded_rows * l_.padded_dim);
    for (int64_t head = 0; head < t_.group; ++head) {
      head_ = head;
      column_ = head * t_.head_dim;
      Zero(base_ + l_.dq, l_.padded_rows * l_.padded_dim);
      FindStatistics();
      FindDeltas();
      for (int64_t key = 0; key < t_.rows; key += kTile) AddKeyTile(key);
      StoreRows(base_ + l_.dq, static_cast<Elem*>(t_.dq) + column_);
    }
    StoreRows(base_ + l_.dk, static_cast<Elem*>(t_.dk));
    StoreRows(base_ + l_.dv, static_cast<Elem*>(t_.dv));
  }

 private:
  static void Zero(AccType* x, int64_t n) {
    for (int64_t i = 0; i < n; i += kN) Store(Vec{}, x + i);
  }

  // Rows [row, row + 64) of one head, widened; zeros past the last row and past D.
  void LoadRows(const void* from, int64_t stride, int64_t row, AccType* to) const {
    for (int64_t r = 0; r < kTile; ++r) {
      const Elem* x = static_cast<const Elem*>(from) + (row + r) * stride;
      for (int64_t d = 0; d < l_.padded_dim; d += kN) {
        const int64_t n = row + r >= t_.rows ? 0 : t_.head_dim - d < kN ? t_.head_dim - d : kN;
        Store(n > 0 ? LoadPart(x + d, n) : Vec{}, to + r * l_.padded_dim + d);
      }
    }
  }
  void LoadQueries(int64_t row) {
    LoadRows(static_cast<const Elem*>(t_.q) + column_, t_.qkv_stride, row, base_ + l_.q);
  }

  // [64, padded_dim] → [padded_dim, 64].
  void Turn(const AccType* from, AccType* to) const {
    for (int64_t d = 0; d < l_.padded_dim; ++d) {
      for (int64_t r = 0; r < kTile; ++r) to[d * kTile + r] = from[r * l_.padded_dim + d];
    }
  }

  void StoreRows(const AccType* from, Elem* to) const {
    for (int64_t r = 0; r < t_.rows; ++r) {
      for (int64_t d = 0; d < t_.head_dim; d += kN) {
        const int64_t n = t_.head_dim - d < kN ? t_.head_dim - d : kN;
        StorePart<Elem>(Load(from + r * l_.padded_dim + d), to + r * t_.dqkv_stride + d, n);
      }
    }
  }

  // The rows of a tile that are there; what is behind them in memory is finite, or not read.
  int64_t RowsOf(int64_t tile) const { return t_.rows - tile < kTile ? t_.rows - tile : kTile; }

  // Query tiles that see a part of the key tile: [key, LastQuery(key)).
  int64_t LastQuery(int64_t key) const {
    const int64_t last = t_.window > 0 ? key + kTile - 1 + t_.window : t_.rows;
    return last < t_.rows ? last : t_.rows;
  }

  // Keys [lo, hi) of the tile are seen by this row.
  struct Visible {
    int64_t lo, hi;
  };
  Visible SeenBy(int64_t row, int64_t key) const {
    if (row >= t_.rows) return {0, 0};
    const int64_t first = t_.window > 0 && row - t_.window + 1 > key ? row - t_.window + 1 - key : 0;
    const int64_t end = row + 1 - key;
    return {first < kTile ? first : kTile, end < 0 ? 0 : end < kTile ? end : kTile};
  }

  // p_ = scores of the tile pair, scaled; -Inf where a row does not see.
  void Scores(int64_t query, int64_t key) {
    AccType* const s = base_ + l_.p;
    const int64_t rows = RowsOf(query);
    Multiply<false, AccType>({base_ + l_.q, l_.padded_dim, 1, t_.head_dim}, base_ + l_.k_turned, s, rows, kTile);
    const AccType scale = static_cast<AccType>(t_.scale), hidden = -static_cast<AccType>(__builtin_inf());
    for (int64_t i = 0; i < rows * kTile; i += kN) Store(Load(s + i) * scale, s + i);
    for (int64_t r = 0; r < rows; ++r) {
      const Visible seen = SeenBy(query + r, key);
      for (int64_t c = 0; c < seen.lo; ++c) s[r * kTile + c] = hidden;
      for (int64_t c = seen.hi; c < kTile; ++c) s[r * kTile + c] = hidden;
    }
  }

  void FindStatistics() {
    AccType *const max = base_ + l_.max, *const sum = base_ + l_.sum;
    for (int64_t r = 0; r < l_.padded_rows; ++r) max[r] = -static_cast<AccType>(__builtin_inf()), sum[r] = 0;
    for (int64_t key = 0; key < t_.rows; key += kTile) {
      t_.yield(t_.pool);
      LoadRows(t_.k, t_.qkv_stride, key, base_ + l_.k);
      Turn(base_ + l_.k, base_ + l_.k_turned);
      for (int64_t query = key; query < LastQuery(key); query += kTile) {
        LoadQueries(query);
        Scores(query, key);
        for (int64_t r = 0; r < RowsOf(query); ++r) {
          const Visible seen = SeenBy(query + r, key);
          if (seen.lo < seen.hi) AddToRow(base_ + l_.p + r * kTile, max + query + r, sum + query + r);
        }
      }
    }
  }

  static void AddToRow(const AccType* s, AccType* max, AccType* sum) {
    Vec largest = Splat(*max), sums = {};
    for (int64_t c = 0; c < kTile; c += kN) largest = Max(Load(s + c), largest);
    const AccType base = MaxLanes(largest);
    for (int64_t c = 0; c < kTile; c += kN) sums += Exp(Load(s + c) - base);
    *sum = *sum * Exp(Splat(*max - base))[0] + SumLanes(sums);
    *max = base;
  }

  void FindDeltas() {
    for (int64_t r = 0; r < t_.rows; ++r) {
      const Elem* out = static_cast<const Elem*>(t_.attended) + r * t_.attended_stride + column_;
      const Elem* dout = static_cast<const Elem*>(t_.dattended) + r * t_.dattended_stride + column_;
      Vec sums = {};
      for (int64_t d = 0; d < t_.head_dim; d += kN) {
        const int64_t n = t_.head_dim - d < kN ? t_.head_dim - d : kN;
        sums = Fma(LoadPart(out + d, n), LoadPart(dout + d, n), sums);
      }
      base_[l_.delta + r] = SumLanes(sums);
    }
  }

  void AddKeyTile(int64_t key) {
    const int64_t dim = l_.padded_dim, keys = RowsOf(key);
    t_.yield(t_.pool);
    // V first, in the memory of K, as only K's transpose is needed.
    LoadRows(t_.v, t_.qkv_stride, key, base_ + l_.k);
    Turn(base_ + l_.k, base_ + l_.v_turned);
    LoadRows(t_.k, t_.qkv_stride, key, base_ + l_.k);
    Turn(base_ + l_.k, base_ + l_.k_turned);
    for (int64_t query = key; query < LastQuery(key); query += kTile) {
      LoadQueries(query);
      LoadRows(static_cast<const Elem*>(t_.dattended) + column_, t_.dattended_stride, query, base_ + l_.dout);
      Scores(query, key);
      const int64_t rows = RowsOf(query);
      Multiply<false, AccType>({base_ + l_.dout, dim, 1, t_.head_dim}, base_ + l_.v_turned, base_ + l_.ds, rows, kTile);
      for (int64_t r = 0; r < rows; ++r) {
        t_.dropout.row_keys == nullptr ? FindScoreGradients(r, query + r) : FindDroppedGradients(r, query + r, key);
      }
      Multiply<true, AccType>({base_ + l_.p, 1, kTile, rows}, base_ + l_.dout, base_ + l_.dv + key * dim, keys, dim);
      Multiply<true, AccType>({base_ + l_.ds, 1, kTile, rows}, base_ + l_.q, base_ + l_.dk + key * dim, keys, dim);
      Multiply<true, AccType>({base_ + l_.ds, kTile, 1, keys}, base_ + l_.k, base_ + l_.dq + query * dim, rows, dim);
    }
  }

  // Scores and dP of one row → P and dS.
  void FindScoreGradients(int64_t r, int64_t row) {
    AccType *const p = base_ + l_.p + r * kTile, *const ds = base_ + l_.ds + r * kTile;
    const AccType max = base_[l_.max + row], delta = base_[l_.delta + row], scale = static_cast<AccType>(t_.scale);
    const AccType share = AccType{1} / base_[l_.sum + row];
    for (int64_t c = 0; c < kTile; c += kN) {
      const Vec probability = Exp(Load(p + c) - max) * share;
      Store(probability, p + c);
      Store(probability * (Load(ds + c) - delta) * scale, ds + c);
    }
  }

  // The same with dropout.
  void FindDroppedGradients(int64_t r, int64_t row, int64_t key) {
    const AttentionDropout& d = t_.dropout;
    const uint64_t site = SiteKey(d.row_keys[row], static_cast<uint64_t>(NoiseSite::kAttention), d.layer);
    const uint64_t of_head = Draw(site, static_cast<uint64_t>(d.first_head + head_));
    const AccType kept = static_cast<AccType>(d.scale);
    alignas(64) AccType factors[kTile];
    for (int64_t c = 0; c < kTile; ++c) factors[c] = Keeps(of_head, key + c, d.threshold) ? kept : 0;
    AccType *const p = base_ + l_.p + r * kTile, *const ds = base_ + l_.ds + r * kTile;
    const AccType max = base_[l_.max + row], delta = base_[l_.delta + row], scale = static_cast<AccType>(t_.scale);
    const AccType share = AccType{1} / base_[l_.sum + row];
    for (int64_t c = 0; c < kTile; c += kN) {
      const Vec probability = Exp(Load(p + c) - max) * share, factor = Load(factors + c);
      Store(probability * factor, p + c);
      Store(probability * (Load(ds + c) * factor - delta) * scale, ds + c);
    }
  }

  const AttentionBackwardTask& t_;
  const AttentionBackwardLayout l_;
  AccType* const base_;
  int64_t head_ = 0, column_ = 0;  // of the query head within the group
};

}  // namespace

void AttentionBackward(const AttentionBackwardTask& task) {
  VisitElem(task.dtype, [&]<class Elem>() { Task<Elem>(task).Run(); });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
