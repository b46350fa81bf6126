// One task of attention, tile by tile of 64 keys:
//   S = Q Kᵀ · scale;   m' = max(m, S);   P = e^(S - m');   l = l · e^(m - m') + Σ P;   O = O · e^(m - m') + P V
//
// Every number of a row is a fixed expression of that row and its keys: a score sums lanes over D in rising
// order and then these by halving; an output adds its keys in rising order.  How many rows or keys a block takes at
// a time (templates below) changes only which of them are in registers together.  A row skips tiles that it does not
// see, and in tiles that it sees in part it does not touch the hidden keys' values, which may not have been written
// yet.
#include "workers/ops/attention/attention_layout.h"
#include "workers/ops/core/kernels_impl.h"
#include "workers/ops/dropout/counter_random.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

constexpr int64_t kTile = 64;  // = kAttentionKeyTile (checked in attention.cc)

// Numbers of a cache in 8 bits, of which the scale is not a part.  Loaded they are kFactor times too small.  (g++ makes
// single moves of a __builtin_convertvector of bytes.)
struct Int8Number {
  static constexpr float kFactor = 1;
  int8_t number;
};
struct E4m3Number {
  static constexpr float kFactor = 256;  // as fp16 of the same bits, whose exponents have another zero
  uint8_t bits;
};

using ops::Load;
SY_INLINE Floats Load(const Int8Number* from) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  Floats out;
  for (int i = 0; i < kFloats; ++i) out[i] = from[i].number;
  return out;
#endif
}
SY_INLINE Floats Load(const E4m3Number* from) {
#if defined(__AVX512F__)
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbf80))));
#elif defined(__AVX2__)
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<int16_t>(0xbf80))));
#else
  Fp16Bits halves[kFloats];
  for (int i = 0; i < kFloats; ++i)
    halves[i].bits = static_cast<uint16_t>((from[i].bits & 0x80) << 8 | (from[i].bits & 0x7f) << 7);
  return Load(halves);
#endif
}

// From so many rows on a tile is widened once into scratch; below, each row reads the cache itself.
constexpr int64_t kWidenRows = 5, kWidenRowsOfBytes = 2;
// Rows of a block: with 4 keys, or 4 vectors of values, each has as many sums as registers hold.
constexpr int kBlockRows = kSumsAtOnce / 4;

// scores[r][c] = q[r] · k[c], kSumsAtOnce of them at a time.
template <int kRows, int kKeys, class Acc, class Key>
SY_INLINE void Dots(const Acc* q, int64_t q_stride, const Key* const* k, int64_t dim, Acc* scores) {
  static_assert(kRows * kKeys == kSumsAtOnce);
  constexpr int kN = Lanes<Acc>::kCount;
  VecT<Acc> sum[kRows][kKeys] = {};
  int64_t d = 0;
  for (; d + kN <= dim; d += kN) {
    VecT<Acc> key[kKeys];
    for (int c = 0; c < kKeys; ++c) key[c] = Load(k[c] + d);
    for (int r = 0; r < kRows; ++r) {
      const VecT<Acc> query = Load(q + r * q_stride + d);
      for (int c = 0; c < kKeys; ++c) sum[r][c] = Fma(query, key[c], sum[r][c]);
    }
  }
  if (d < dim) {
    for (int c = 0; c < kKeys; ++c) {
      const VecT<Acc> key = LoadPart(k[c] + d, dim - d);
      for (int r = 0; r < kRows; ++r) sum[r][c] = Fma(Load(q + r * q_stride + d), key, sum[r][c]);
    }
  }
  Acc sums[kSumsAtOnce];
  SumLanesOfEach(&sum[0][0], sums);
  for (int r = 0; r < kRows; ++r) __builtin_memcpy(scores + r * kTile, sums + r * kKeys, kKeys * sizeof(Acc));
}

// A row's view of a tile: keys [lo, hi) of its kTile.
struct Visible {
  int64_t lo, hi;
  bool none() const { return lo >= hi; }
  bool all() const { return lo == 0 && hi == kTile; }
};

// The argument of AddTile: some rows' outputs, probabilities and decays.
template <class Acc>
struct RowBlock {
  const Acc* p;  // [rows, kTile]
  const Acc* decay;
  Acc* out;  // [rows, stride]
  int64_t stride;
};

// out[r][d, d + kVecs vectors) = out[r] · decay[r] + Σ p[r][c] · v[c] over the keys seen, c rising.  n: elements of the
// last vector that exist in v.
template <int kRows, int kVecs, class Acc, class Value>
SY_INLINE void AddValues(const RowBlock<Acc>& rows, const Value* const* v, Visible seen, int64_t d, int64_t n) {
  constexpr int kN = Lanes<Acc>::kCount;
  VecT<Acc> sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVecs; ++i) sum[r][i] = Load(rows.out + r * rows.stride + d + i * kN) * rows.decay[r];
  }
  for (int64_t c = seen.lo; c < seen.hi; ++c) {
    VecT<Acc> value[kVecs];
    for (int i = 0; i + 1 < kVecs; ++i) value[i] = Load(v[c] + d + i * kN);
    value[kVecs - 1] = LoadPart(v[c] + d + (kVecs - 1) * kN, n);
    for (int r = 0; r < kRows; ++r) {
      const VecT<Acc> weight = Splat(rows.p[r * kTile + c]);
      for (int i = 0; i < kVecs; ++i) sum[r][i] = Fma(weight, value[i], sum[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVecs; ++i) Store(sum[r][i], rows.out + r * rows.stride + d + i * kN);
  }
}

// All of D, kVecs vectors at a time.
template <int kRows, int kVecs, class Acc, class Value>
SY_INLINE void AddTile(const RowBlock<Acc>& rows, const Value* const* v, Visible seen, int64_t dim) {
  constexpr int kN = Lanes<Acc>::kCount;
  int64_t d = 0;
  for (; d + kVecs * kN <= dim; d += kVecs * kN) AddValues<kRows, kVecs>(rows, v, seen, d, kN);
  for (; d < dim; d += kN) AddValues<kRows, 1>(rows, v, seen, d, dim - d < kN ? dim - d : kN);
}

// Stored: the cache's numbers.
template <class Elem, class Stored = Elem>
class Task {
 public:
  using AccType = AccT<Elem>;
  static constexpr bool kHasScales = !__is_same(Elem, Stored);
  static constexpr int kN = Lanes<Elem>::kCount;

  explicit Task(const AttentionTask& t)
      : t_(t), rows_(t.queries * t.group), layout_(LayOutAttention(rows_, t.head_dim, kTile)) {
    AccType* base = static_cast<AccType*>(t.scratch);
    q_ = base + layout_.q;
    out_ = base + layout_.out;
    scores_ = base + layout_.scores;
    max_ = base + layout_.max;
    sum_ = base + layout_.sum;
    decay_ = base + layout_.decay;
    wide_k_ = base + layout_.k;
    wide_v_ = base + layout_.v;
  }

  void Run() {
    LoadQueries();
    const int64_t last_pos = t_.first_pos + t_.queries - 1;
    const int64_t first_key = t_.window > 0 && t_.first_pos >= t_.window ? t_.first_pos - t_.window + 1 : 0;
    for (int64_t tile = first_key / kTile * kTile; tile <= last_pos; tile += kTile) {
      const int64_t begin = first_key > tile ? first_key - tile : 0;
      const int64_t end = last_pos + 1 - tile < kTile ? last_pos + 1 - tile : kTile;
      FindKeys(tile, begin, end);
      for (int64_t pos = tile + kTile; pos < tile + 2 * kTile && pos <= last_pos; ++pos) PrefetchKey<Stored>(t_, pos);
      if (rows_ >= (kHasScales ? kWidenRowsOfBytes : kWidenRows) && sizeof(Stored) < sizeof(AccType)) {
        Widen(begin, end);
        RunTile<AccType>(tile, wide_keys_, wide_values_, layout_.padded_dim);
      } else {
        RunTile<Stored>(tile, keys_, values_, t_.head_dim);
      }
    }
    StoreOutputs();
  }

 private:
  void LoadQueries() {
    for (int64_t r = 0; r < rows_; ++r) {
      const Elem* from = static_cast<const Elem*>(t_.q) + r / t_.group * t_.q_stride + r % t_.group * t_.head_dim;
      AccType* to = q_ + r * layout_.padded_dim;
      for (int64_t d = 0; d < layout_.padded_dim; d += kN) {
        const int64_t n = t_.head_dim - d < kN ? t_.head_dim - d : kN;
        Store(n > 0 ? LoadPart(from + d, n) : VecT<Elem>{}, to + d);
        Store(VecT<Elem>{}, out_ + r * layout_.padded_dim + d);
      }
      // A sink is as a key that was seen first, with a value of zeros.
      const AccType* sinks = static_cast<const AccType*>(t_.sinks);
      max_[r] = sinks != nullptr ? sinks[r % t_.group] : -static_cast<AccType>(__builtin_inf());
      sum_[r] = sinks != nullptr ? 1 : 0;
    }
  }

  // Addresses of the tile's keys [begin, end) in the cache; keys outside, which no row sees, get an existing key's.
  void FindKeys(int64_t tile, int64_t begin, int64_t end) {
    int64_t block = (tile + begin) / t_.block_size, in_block = (tile + begin) % t_.block_size;
    for (int64_t c = begin; c < end; ++c) {
      const int64_t head = t_.block_table[block] * t_.block_stride, at = head + in_block * t_.head_dim;
      keys_[c] = static_cast<const Stored*>(t_.k) + at;
      values_[c] = static_cast<const Stored*>(t_.v) + at;
      if constexpr (kHasScales) {
        const int64_t scale = head + t_.block_size * t_.head_dim + in_block * 4;
        __builtin_memcpy(key_scales_ + c, static_cast<const char*>(t_.k) + scale, sizeof(float));
        __builtin_memcpy(value_scales_ + c, static_cast<const char*>(t_.v) + scale, sizeof(float));
        key_scales_[c] *= Stored::kFactor;
        value_scales_[c] *= Stored::kFactor;
      }
      if (++in_block == t_.block_size) in_block = 0, ++block;
    }
    for (int64_t c = 0; c < begin; ++c) SetKey(c, begin);
    for (int64_t c = end; c < kTile; ++c) SetKey(c, begin);
  }
  void SetKey(int64_t c, int64_t other) {
    keys_[c] = keys_[other];
    values_[c] = values_[other];
    if constexpr (kHasScales) key_scales_[c] = key_scales_[other], value_scales_[c] = value_scales_[other];
  }

  void Widen(int64_t begin, int64_t end) {
    for (int64_t c = 0; c < kTile; ++c) {
      const int64_t from = c < begin || c >= end ? begin : c;
      wide_keys_[c] = wide_k_ + from * layout_.padded_dim;
      wide_values_[c] = wide_v_ + from * layout_.padded_dim;
      if (from != c) continue;
      for (int64_t d = 0; d < layout_.padded_dim; d += kN) {
        const int64_t n = t_.head_dim - d < kN ? t_.head_dim - d : kN;
        Store(n > 0 ? LoadPart(keys_[c] + d, n) : VecT<Elem>{}, wide_k_ + c * layout_.padded_dim + d);
        Store(n > 0 ? LoadPart(values_[c] + d, n) : VecT<Elem>{}, wide_v_ + c * layout_.padded_dim + d);
      }
    }
  }

  Visible SeenBy(int64_t row, int64_t tile) const {
    const int64_t pos = t_.first_pos + row / t_.group;
    const int64_t first = t_.window > 0 ? pos - t_.window + 1 : 0;
    return {.lo = first > tile ? first - tile : 0, .hi = pos + 1 - tile < kTile ? pos + 1 - tile : kTile};
  }

  template <class Key>
  void RunTile(int64_t tile, const Key* const* keys, const Key* const* values, int64_t dim) {
    Scores(keys, dim);
    for (int64_t r = 0; r < rows_; ++r) {
      if constexpr (kHasScales) Multiply(r, key_scales_);
      Soften(r, SeenBy(r, tile));
      if (t_.dropout.row_keys != nullptr) Drop(r, tile);
      if constexpr (kHasScales) Multiply(r, value_scales_);
    }
    int64_t r = 0;
    for (; r + kBlockRows <= rows_; r += kBlockRows) {
      // Positions rise with r, so the first and the last row decide for those between.
      if (SeenBy(r, tile).all() && SeenBy(r + kBlockRows - 1, tile).all()) {
        AddTile<kBlockRows, 4>(Block(r), values, {.lo = 0, .hi = kTile}, dim);
      } else {
        for (int i = 0; i < kBlockRows; ++i) AddRow(r + i, SeenBy(r + i, tile), values, dim);
      }
    }
    for (; r < rows_; ++r) AddRow(r, SeenBy(r, tile), values, dim);
  }

  template <class Key>
  void Scores(const Key* const* keys, int64_t dim) {
    const int64_t stride = layout_.padded_dim;
    int64_t r = 0;
    for (; r + kBlockRows <= rows_; r += kBlockRows) {
      AccType* to = scores_ + r * kTile;
      for (int64_t c = 0; c < kTile; c += 4) Dots<kBlockRows, 4>(q_ + r * stride, stride, keys + c, dim, to + c);
    }
    for (; r < rows_; ++r) {
      AccType* to = scores_ + r * kTile;
      for (int64_t c = 0; c < kTile; c += kSumsAtOnce)
        Dots<1, kSumsAtOnce>(q_ + r * stride, stride, keys + c, dim, to + c);
    }
  }

  // Scores or probabilities of row r by scales of the keys.
  void Multiply(int64_t r, const AccType* scales) {
    AccType* s = scores_ + r * kTile;
    for (int64_t c = 0; c < kTile; c += kN) Store(Load(s + c) * Load(scales + c), s + c);
  }

  // Scores of row r → probabilities relative to its new maximum.
  void Soften(int64_t r, Visible seen) {
    if (seen.none()) return;
    AccType* s = scores_ + r * kTile;
    const AccType scale = static_cast<AccType>(t_.scale);
    const AccType hidden = -static_cast<AccType>(__builtin_inf());
    for (int64_t c = 0; c < kTile; c += kN) Store(Load(s + c) * scale, s + c);
    for (int64_t c = 0; c < seen.lo; ++c) s[c] = hidden;
    for (int64_t c = seen.hi; c < kTile; ++c) s[c] = hidden;
    VecT<Elem> largest = Splat(max_[r]);
    for (int64_t c = 0; c < kTile; c += kN) largest = Max(Load(s + c), largest);
    const AccType max = MaxLanes(largest);
    VecT<Elem> sums = {};
    for (int64_t c = 0; c < kTile; c += kN) {
      const VecT<Elem> p = Exp(Load(s + c) - max);
      Store(p, s + c);
      sums += p;
    }
    const AccType decay = Exp(Splat(max_[r] - max))[0];
    decay_[r] = decay;
    sum_[r] = sum_[r] * decay + SumLanes(sums);
    max_[r] = max;
  }

  // Probabilities of row r, which the denominator has already.
  void Drop(int64_t r, int64_t tile) {
    const AttentionDropout& d = t_.dropout;
    const uint64_t site = SiteKey(d.row_keys[r / t_.group], static_cast<uint64_t>(NoiseSite::kAttention), d.layer);
    const uint64_t key = Draw(site, static_cast<uint64_t>(d.first_head + r % t_.group));
    AccType* s = scores_ + r * kTile;
    const AccType scale = static_cast<AccType>(d.scale);
    for (int64_t c = 0; c < kTile; ++c) s[c] = Keeps(key, tile + c, d.threshold) ? s[c] * scale : 0;
  }

  template <class Value>
  void AddRow(int64_t r, Visible seen, const Value* const* values, int64_t dim) {
    if (!seen.none()) AddTile<1, 8>(Block(r), values, seen, dim);
  }

  AccType* RowOut(int64_t r) const { return out_ + r * layout_.padded_dim; }
  RowBlock<AccType> Block(int64_t r) const {
    return {.p = scores_ + r * kTile, .decay = decay_ + r, .out = RowOut(r), .stride = layout_.padded_dim};
  }

  void StoreOutputs() {
    for (int64_t r = 0; r < rows_; ++r) {
      Elem* to = static_cast<Elem*>(t_.out) + r / t_.group * t_.out_stride + r % t_.group * t_.head_dim;
      const AccType scale = AccType{1} / sum_[r];
      for (int64_t d = 0; d < t_.head_dim; d += kN) {
        const int64_t n = t_.head_dim - d < kN ? t_.head_dim - d : kN;
        StorePart<Elem>(Load(RowOut(r) + d) * scale, to + d, n);
      }
    }
  }

  const AttentionTask& t_;
  const int64_t rows_;
  const AttentionLayout layout_;
  AccType *q_, *out_, *scores_, *max_, *sum_, *decay_, *wide_k_, *wide_v_;
  const Stored* keys_[kTile];
  const Stored* values_[kTile];
  AccType key_scales_[kHasScales ? kTile : 1], value_scales_[kHasScales ? kTile : 1];
  const AccType* wide_keys_[kTile];
  const AccType* wide_values_[kTile];
};

}  // namespace

void AttentionRows(const AttentionTask& task) {
  VisitElem(task.dtype, [&]<class Elem>() {
    if (task.kv_format == 0) return Task<Elem>(task).Run();
    if constexpr (sizeof(AccT<Elem>) == sizeof(float)) {
      if (task.kv_format == 1) return Task<Elem, Int8Number>(task).Run();
      Task<Elem, E4m3Number>(task).Run();
    }
  });
}

}  // namespace switchyard::ops::SY_KERNEL_NS
