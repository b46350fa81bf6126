// One task of bf16 attention by tile products (tile_product.h: AMX, or vdpbf16ps).  Same contract and same walk as
// attention_cpu.cc, other arithmetic: rows stand in the lanes, 16 at a time.
//   Sᵀ[16 keys, 16 rows] += K[16 keys, 32 d] · Qᵀ[32 d, 16 rows]     K straight from the cache, Q packed once
//   softmax down the keys, all 16 rows in one vector
//   O[16 rows, 16 d] += P[16 rows, 32 keys] · V[32 keys, 16 d]        P rounded to bf16, V packed per tile
//
// Sameness: a tile product adds its k in one order for every output, whatever the other rows hold.  What a row does not
// see enters with P = 0, which changes no finite sum; and since tasks begin at multiples of 16 positions (attention.cc)
// the 16 rows of a tile reach the same last key tile, so that none is run through a tile beyond its own position.
// Without AMX, keys stand in the lanes where rows are few (decode): the same sums in the same order, of 1 or 4 rows.
#include "workers/ops/attention/attention_layout.h"
#include "workers/ops/core/kernels_impl.h"
#include "workers/ops/core/transpose.h"
#include "workers/ops/gemm/tile_product.h"

namespace switchyard::ops::SY_KERNEL_NS {
namespace {

constexpr int64_t kTile = 64;  // = kAttentionKeyTile (checked in attention.cc)
typedef int32_t Ints __attribute__((vector_size(64)));

class TileTask {
 public:
  explicit TileTask(const AttentionTask& t)
      : t_(t), rows_(t.queries * t.group), layout_(LayOutTileAttention(rows_, t.head_dim)) {
    char* base = static_cast<char*>(t.scratch);
    q_ = reinterpret_cast<uint32_t*>(base + layout_.q);
    out_ = reinterpret_cast<float*>(base + layout_.out);
    scores_ = reinterpret_cast<float*>(base + layout_.scores);
    max_ = reinterpret_cast<float*>(base + layout_.max);
    sum_ = reinterpret_cast<float*>(base + layout_.sum);
    p_ = reinterpret_cast<uint32_t*>(base + layout_.p);
    k_ = reinterpret_cast<uint16_t*>(base + layout_.k);
    v_ = reinterpret_cast<uint32_t*>(base + layout_.v);
  }

  void Run() {
    BeginTiles();
    const int64_t last_pos = t_.first_pos + t_.queries - 1;
    const int64_t first_key = t_.window > 0 && t_.first_pos >= t_.window ? t_.first_pos - t_.window + 1 : 0;
    for (int64_t pos = first_key; pos <= last_pos && pos / kTile == first_key / kTile; ++pos) {
      PrefetchKey<uint16_t>(t_, pos);
    }
    PackQueries();
    for (int64_t tile = first_key / kTile * kTile; tile <= last_pos; tile += kTile) {
      const int64_t begin = first_key > tile ? first_key - tile : 0;
      const int64_t end = last_pos + 1 - tile < kTile ? last_pos + 1 - tile : kTile;
      FindKeys(tile, begin, end);
      PackValues(tile + kTile, last_pos);
      RunTile(tile);
    }
    StoreOutputs();
    EndTiles();
  }

 private:
  void RunTile(int64_t tile) {
#if !defined(__AMX_BF16__)
    if (rows_ <= 4) return rows_ == 1 ? RunFew<1>(tile) : RunFew<4>(tile);
#endif
    Scores();
    for (int64_t r = 0; r < layout_.row_tiles; ++r) {
      if (tile > Position(r * kSide)) continue;  // beyond these rows: all 16 have the same last key tile
      Soften(r, tile);
      AddValues(r);
    }
  }

  // Rows past the last one repeat its position; their queries are zero and their outputs are not used.
  int64_t Position(int64_t row) const { return t_.first_pos + (row < rows_ ? row : rows_ - 1) / t_.group; }

  // q_[row tile][d chunk][d pair][row]: pairs of neighbouring d in one 32-bit word.
  void PackQueries() {
    for (int64_t i = 0; i < layout_.row_tiles * layout_.chunks * 256; ++i) q_[i] = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t at = r / t_.group * t_.q_stride + r % t_.group * t_.head_dim;
      const uint16_t* from = static_cast<const uint16_t*>(t_.q) + at;
      uint16_t* to = reinterpret_cast<uint16_t*>(q_ + r / kSide * layout_.chunks * 256) + r % kSide * 2;
      for (int64_t d = 0; d < t_.head_dim; ++d) to[d / 2 * 32 + d % 2] = from[d];
    }
    for (int64_t i = 0; i < layout_.row_tiles * kSide * layout_.padded_dim; ++i) out_[i] = 0;
    // A sink is as a key that was seen first, with a value of zeros.
    const float* sinks = static_cast<const float*>(t_.sinks);
    for (int64_t i = 0; i < layout_.row_tiles * kSide; ++i) {
      const bool sunk = sinks != nullptr && i < rows_;
      max_[i] = sunk ? sinks[i % t_.group] : -__builtin_inff();
      sum_[i] = sunk ? 1 : 0;
    }
  }

  // Addresses of the tile's keys; null for those that no row sees, which count as zero.
  void FindKeys(int64_t tile, int64_t begin, int64_t end) {
    for (int64_t c = 0; c < kTile; ++c) keys_[c] = values_[c] = nullptr;
    int64_t block = (tile + begin) / t_.block_size, in_block = (tile + begin) % t_.block_size;
    for (int64_t c = begin; c < end; ++c) {
      const int64_t at = t_.block_table[block] * t_.block_stride + in_block * t_.head_dim;
      keys_[c] = static_cast<const uint16_t*>(t_.k) + at;
      values_[c] = static_cast<const uint16_t*>(t_.v) + at;
      if (++in_block == t_.block_size) in_block = 0, ++block;
    }
  }

  SY_INLINE __m512i LoadHalves(const uint16_t* row, int64_t d) const {
    if (row == nullptr || d >= t_.head_dim) return _mm512_setzero_si512();
    const int64_t n = t_.head_dim - d;
    return _mm512_maskz_loadu_epi16(n >= 32 ? ~0u : (1u << n) - 1, row + d);
  }

  // Where 16 keys can be read as one tile: in the cache if they are neighbours there, else from a copy.
  const uint16_t* KeyGroup(int64_t g, int64_t* stride) {
    const uint16_t* const* keys = keys_ + g * kSide;
    bool neighbours = t_.head_dim % kDepth == 0 && keys[0] != nullptr;
    for (int64_t c = 1; c < kSide && neighbours; ++c) neighbours = keys[c] == keys[0] + c * t_.head_dim;
    *stride = layout_.padded_dim;
    if (neighbours) return keys[0];
    uint16_t* copy = k_;
    for (int64_t c = 0; c < kSide; ++c) {
      for (int64_t d = 0; d < layout_.padded_dim; d += kDepth) {
        _mm512_storeu_si512(copy + c * layout_.padded_dim + d, LoadHalves(keys[c], d));
      }
    }
    return copy;
  }

  // scores_[row tile][key][row].
  void Scores() {
    for (int64_t g = 0; g < kTile / kSide; ++g) {
      int64_t stride;
      const uint16_t* keys = KeyGroup(g, &stride);
      for (int64_t r = 0; r < layout_.row_tiles; r += 2) {
        const uint32_t* queries = q_ + r * layout_.chunks * kTileWords;
        float* to = scores_ + (r * kTile + g * kSide) * kSide;
        const bool two = r + 1 < layout_.row_tiles;
        TileDots(keys, stride, queries, queries + layout_.chunks * kTileWords, layout_.chunks, to,
                 two ? to + kTile * kSide : nullptr);
      }
    }
  }

  // v_[32 keys][16 d][key pair][d]: pairs of neighbouring keys in one word.  Meanwhile the next tile is asked for.
  void PackValues(int64_t next, int64_t last_pos) {
    alignas(64) uint16_t order[32];
    for (int i = 0; i < 16; ++i) order[2 * i] = i, order[2 * i + 1] = 32 + i;
    const __m512i low = _mm512_load_si512(order), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const int64_t d_tiles = layout_.padded_dim / kSide;
    for (int64_t pair = 0; pair < kTile / 2; ++pair) {
      uint32_t* to = v_ + pair / kSide * d_tiles * 256 + pair % kSide * kSide;
      if (next + 2 * pair <= last_pos) PrefetchKey<uint16_t>(t_, next + 2 * pair);
      if (next + 2 * pair + 1 <= last_pos) PrefetchKey<uint16_t>(t_, next + 2 * pair + 1);
      for (int64_t d = 0; d < layout_.padded_dim; d += kDepth) {
        const __m512i first = LoadHalves(values_[2 * pair], d), second = LoadHalves(values_[2 * pair + 1], d);
        _mm512_storeu_si512(to + d / kSide * 256, _mm512_permutex2var_epi16(first, low, second));
        _mm512_storeu_si512(to + (d / kSide + 1) * 256, _mm512_permutex2var_epi16(first, high, second));
      }
    }
  }

  // Scales 16 rows' scores and hides what they do not see; returns the rows' maxima.
  Floats MaskAndMax(float* s, int64_t row_tile, int64_t tile) const {
    Ints lo = {}, hi = {};
    bool partial = false;
    for (int64_t i = 0; i < kSide; ++i) {
      const int64_t pos = Position(row_tile * kSide + i);
      const int64_t first = t_.window > 0 ? pos - t_.window + 1 - tile : 0, end = pos + 1 - tile;
      lo[i] = static_cast<int32_t>(first > 0 ? first : 0);
      hi[i] = static_cast<int32_t>(end < kTile ? end : kTile);
      partial |= first > 0 || end < kTile;
    }
    const Floats scale = Splat(static_cast<float>(t_.scale)), hidden = Splat(-__builtin_inff());
    Floats max = Load(max_ + row_tile * kSide);
    for (int32_t c = 0; c < kTile; ++c) {
      Floats x = Load(s + c * kSide) * scale;
      if (partial) x = ((lo <= c) & (hi > c)) ? x : hidden;
      Store(x, s + c * kSide);
      max = Max(x, max);
    }
    return max;
  }

  // Scores of 16 rows → p_[2][row][32 keys] in bf16; rescales what the rows have so far.
  void Soften(int64_t row_tile, int64_t tile) {
    float* s = scores_ + row_tile * kTile * kSide;
    const Floats max = MaskAndMax(s, row_tile, tile);
    // Rows that have seen nothing yet: any finite number will do, e^-Inf is 0.
    const Floats base = max == -__builtin_inff() ? Floats{} : max;
    Floats sums[2] = {};
    for (int half = 0; half < 2; ++half) {
      __m512i pairs[kSide];
      for (int64_t i = 0; i < kSide; ++i) {
        const float* at = s + (half * kDepth + 2 * i) * kSide;
        const Words even = RoundToBf16(Exp(Load(at) - base)), odd = RoundToBf16(Exp(Load(at + kSide) - base));
        sums[0] += reinterpret_cast<Floats>(even);
        sums[1] += reinterpret_cast<Floats>(odd);
        pairs[i] = reinterpret_cast<__m512i>(odd | (even >> 16));
      }
      Transpose(pairs, p_ + half * 256);
    }
    const Floats decay = Exp(Load(max_ + row_tile * kSide) - base);
    Store(Fma(Load(sum_ + row_tile * kSide), decay, sums[0] + sums[1]), sum_ + row_tile * kSide);
    Store(max, max_ + row_tile * kSide);
    for (int64_t i = 0; i < kSide; ++i) {
      if (decay[i] == 1.0f) continue;  // the same bits without the work
      float* row = out_ + (row_tile * kSide + i) * layout_.padded_dim;
      for (int64_t d = 0; d < layout_.padded_dim; d += kSide) Store(Load(row + d) * decay[i], row + d);
    }
  }

#if !defined(__AMX_BF16__)
  // A tile for kRows rows; those past the last one are computed, too, as by TileAccumulate.
  template <int kRows>
  void RunFew(int64_t tile) {
    if (tile > Position(0)) return;
    for (int64_t g = 0; g < kTile / kSide; ++g) ScoreKeys<kRows>(g);
    for (int64_t r = 0; r < kRows; ++r) SoftenRow(r, tile);
    AddValues(0);
  }

  // scores_[row][key] of 16 keys.
  template <int kRows>
  void ScoreKeys(int64_t group) {
    int64_t stride;
    const uint16_t* const keys = KeyGroup(group, &stride);
    __m512 sum[kRows] = {};
    for (int64_t c = 0; c < layout_.chunks; ++c) {
      __m512i rows[kSide];
      for (int64_t i = 0; i < kSide; ++i) rows[i] = _mm512_loadu_si512(keys + i * stride + c * kDepth);
      alignas(64) uint32_t pairs[kTileWords];
      Transpose(rows, pairs);
      for (int64_t pair = 0; pair < kSide; ++pair) {
        const __m512bh of_keys = reinterpret_cast<__m512bh>(_mm512_load_si512(pairs + pair * kSide));
        const uint32_t* const queries = q_ + c * kTileWords + pair * kSide;
        for (int64_t r = 0; r < kRows; ++r) {
          const __m512bh query = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(queries[r])));
          sum[r] = _mm512_dpbf16_ps(sum[r], query, of_keys);
        }
      }
    }
    for (int64_t r = 0; r < kRows; ++r) _mm512_storeu_ps(scores_ + r * kTile + group * kSide, sum[r]);
  }

  // As Soften, of one row.
  void SoftenRow(int64_t r, int64_t tile) {
    float* const s = scores_ + r * kTile;
    const int64_t pos = Position(r), first = t_.window > 0 ? pos - t_.window + 1 - tile : 0, end = pos + 1 - tile;
    const Floats scale = Splat(static_cast<float>(t_.scale)), hidden = Splat(-__builtin_inff());
    Ints key;
    for (int32_t i = 0; i < kSide; ++i) key[i] = i;
    Floats largest = Splat(max_[r]);
    for (int64_t c = 0; c < kTile; c += kSide, key += static_cast<int32_t>(kSide)) {
      Floats x = Load(s + c) * scale;
      if (first > c || end < c + kSide) {
        x = ((key >= static_cast<int32_t>(first)) & (key < static_cast<int32_t>(end))) ? x : hidden;
      }
      Store(x, s + c);
      largest = Max(x, largest);
    }
    const float max = MaxLanes(largest), base = max == -__builtin_inff() ? 0 : max;
    for (int64_t c = 0; c < kTile; c += kSide) {
      const Words p = RoundToBf16(Exp(Load(s + c) - base));
      Store(reinterpret_cast<Floats>(p), s + c);
      const HalfWords halves = __builtin_convertvector(p >> 16, HalfWords);
      uint32_t* const to = p_ + c / kDepth * kTileWords + r * kSide + c % kDepth / 2;
      __builtin_memcpy(to, &halves, sizeof(halves));
    }
    float sums[2] = {};  // of the even keys and of the odd ones
    for (int64_t c = 0; c < kTile; c += 2) sums[0] += s[c], sums[1] += s[c + 1];
    const float decay = Exp(Splat(max_[r]) - base)[0];
    sum_[r] = __builtin_fmaf(sum_[r], decay, sums[0] + sums[1]);
    max_[r] = max;
    if (decay == 1.0F) return;  // the same bits without the work
    float* const out = out_ + r * layout_.padded_dim;
    for (int64_t d = 0; d < layout_.padded_dim; d += kSide) Store(Load(out + d) * decay, out + d);
  }
#endif

  void AddValues(int64_t row_tile) {
    TileAccumulate(rows_ - row_tile * kSide, p_, v_, layout_.padded_dim / kSide,
                   out_ + row_tile * kSide * layout_.padded_dim, layout_.padded_dim);
  }

  void StoreOutputs() {
    for (int64_t r = 0; r < rows_; ++r) {
      Bf16Bits* to = static_cast<Bf16Bits*>(t_.out) + r / t_.group * t_.out_stride + r % t_.group * t_.head_dim;
      const float scale = 1.0f / sum_[r];
      for (int64_t d = 0; d < t_.head_dim; d += kSide) {
        const int64_t n = t_.head_dim - d < kSide ? t_.head_dim - d : kSide;
        StorePart<Bf16Bits>(Load(out_ + r * layout_.padded_dim + d) * scale, to + d, n);
      }
    }
  }

  const AttentionTask& t_;
  const int64_t rows_;
  const TileAttentionLayout layout_;
  uint32_t *q_, *p_, *v_;
  float *out_, *scores_, *max_, *sum_;
  uint16_t* k_;
  const uint16_t* keys_[kTile];
  const uint16_t* values_[kTile];
};

}  // namespace

void AttentionBf16(const AttentionTask& task) { TileTask(task).Run(); }

}  // namespace switchyard::ops::SY_KERNEL_NS
