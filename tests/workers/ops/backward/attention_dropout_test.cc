// Attention with dropout of its probabilities, forward and backward, against the naive reference.
#include "tests/reference/attention.h"
#include "tests/workers/ops/backward/backward_test_util.h"
#include "workers/ops/attention/attention.h"
#include "workers/ops/attention/attention_backward.h"

namespace switchyard::ops {
namespace {

constexpr double kRate = 0.35;
constexpr int64_t kLayer = 4;

// Whole sequences, one behind the other, through a cache with blocks of one position.
struct Batch {
  reference::AttentionCase shape;
  std::vector<WholeSequence> sequences;
  int64_t rows = 0;
  Tensor qkv, attended, dattended, dqkv, k, v, sinks;
  std::vector<uint64_t> keys;
  std::vector<int32_t> blocks;

  Batch(const Stream& stream, DType dtype, reference::AttentionCase c, const std::vector<int32_t>& lengths)
      : shape(std::move(c)) {
    shape.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
    for (const int32_t length : lengths) {
      sequences.push_back({static_cast<int32_t>(rows), length});
      rows += length;
    }
    const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    qkv = RandomMatrix(dtype, rows, width, 1), dattended = RandomMatrix(dtype, rows, q_width(), 2);
    attended = Tensor(dtype, {rows, q_width()}), dqkv = Tensor(dtype, {rows, width});
    const Shape cache = KvCacheShape(rows, shape.kv_heads, 1, shape.head_dim);
    k = Tensor(dtype, cache), v = Tensor(dtype, cache);
    if (!shape.sinks.empty()) sinks = Tensor(AccDType(dtype), {1, shape.heads});
    for (size_t h = 0; h < shape.sinks.size(); ++h) Set(sinks, 0, static_cast<int64_t>(h), shape.sinks[h]);
    for (int64_t t = 0; t < rows; ++t) {
      keys.push_back(RowKey(StepKey(77, 5), t % 3, t));
      blocks.push_back(static_cast<int32_t>(t));
    }
    Forward(stream);
  }

  int64_t q_width() const { return shape.heads * shape.head_dim; }
  int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }
  NoiseDesc dropout() const {
    return {.rate = kRate, .row_keys = keys, .site = NoiseSite::kAttention, .layer = kLayer};
  }
  AttentionDesc desc() const {
    return {.num_heads = shape.heads,
            .scale = shape.scale,
            .window = static_cast<int32_t>(shape.window),
            .sinks = shape.sinks.empty() ? TensorView() : sinks.view().Reshape({shape.heads}),
            .dropout = dropout()};
  }
  void Forward(const Stream& stream) const {
    std::vector<SequenceRows> all;
    for (const WholeSequence& s : sequences) {
      all.push_back({.row_begin = s.first_row,
                     .num_query = s.num_rows,
                     .block_table = absl::MakeConstSpan(blocks).subspan(s.first_row, s.num_rows)});
    }
    const TensorView view = qkv;
    SY_CHECK_OK(WriteKv(stream, all, view.Columns(q_width(), kv_width()),
                        view.Columns(q_width() + kv_width(), kv_width()), {k, v}));
    SY_CHECK_OK(PagedAttention(stream, desc(), all, view.Columns(0, q_width()), {k, v}, attended));
  }
  absl::Status Backward(const Stream& stream) const {
    return AttentionBackward(stream,
                             {.num_heads = shape.heads,
                              .num_kv_heads = shape.kv_heads,
                              .head_dim = shape.head_dim,
                              .scale = shape.scale,
                              .window = static_cast<int32_t>(shape.window),
                              .dropout = dropout()},
                             sequences, qkv, attended, dattended, dqkv);
  }

  std::vector<std::vector<double>> Part(const TensorView& t, const WholeSequence& s) const {
    std::vector<std::vector<double>> out;
    for (int32_t i = 0; i < s.num_rows; ++i) out.push_back(RowOf(t, s.first_row + i));
    return out;
  }
  std::vector<std::vector<double>> Queries(const WholeSequence& s) const {
    return Part(qkv.view().Columns(0, q_width()), s);
  }
  std::vector<std::vector<double>> Keys(const WholeSequence& s) const {
    return Part(qkv.view().Columns(q_width(), kv_width()), s);
  }
  std::vector<std::vector<double>> Values(const WholeSequence& s) const {
    return Part(qkv.view().Columns(q_width() + kv_width(), kv_width()), s);
  }
  reference::AttentionCase Case(const WholeSequence& s) const {
    reference::AttentionCase c = shape;
    c.factor = [this, first = s.first_row](int64_t row, int64_t head, int64_t key) {
      const uint64_t site = Draw(Draw(keys[first + row], 1), kLayer);
      const double draw =
          static_cast<double>(Draw(Draw(site, static_cast<uint64_t>(head)), static_cast<uint64_t>(key)) >> 32);
      return draw < std::floor(kRate * 4294967296.0) ? 0 : 1 / (1 - kRate);
    };
    return c;
  }
};

std::vector<double> Flat(const std::vector<std::vector<double>>& rows) {
  std::vector<double> out;
  for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
  return out;
}

const std::vector<int32_t> kLengths = {1, 70, 5, 130, 64};

class AttentionDropoutTest : public OpTest {};
class AttentionDropoutF64Test : public OpTest {};

TEST_P(AttentionDropoutTest, MatchesReference) {
  for (const reference::AttentionCase& c :
       std::vector<reference::AttentionCase>{{.heads = 1, .kv_heads = 1, .head_dim = 8},
                                             {.heads = 4, .kv_heads = 2, .head_dim = 40},
                                             {.heads = 3, .kv_heads = 1, .head_dim = 16, .window = 5},
                                             {.heads = 2, .kv_heads = 2, .head_dim = 20, .window = 70}}) {
    const Batch batch(stream(), dtype(), c, kLengths);
    ASSERT_TRUE(batch.Backward(stream()).ok());
    for (const WholeSequence& s : batch.sequences) {
      const std::string where = absl::StrCat(s.num_rows, " rows, dim ", c.head_dim, " window ", c.window);
      const auto q = batch.Queries(s), k = batch.Keys(s), v = batch.Values(s);
      std::vector<std::vector<double>> out;
      for (int32_t i = 0; i < s.num_rows; ++i) out.push_back(reference::AttendOne(batch.Case(s), q[i], k, v, i));
      ExpectNearAtScale(Flat(batch.Part(batch.attended, s)), Flat(out), 0.5, reference::ReductionTolerance(dtype()),
                        where);
      const reference::AttentionGradients want =
          reference::AttendBackward(batch.Case(s), q, k, v, batch.Part(batch.dattended, s));
      const auto expect = [&](int64_t column, int64_t width, const std::vector<std::vector<double>>& rows,
                              const char* what) {
        ExpectNearAtScale(Flat(batch.Part(batch.dqkv.view().Columns(column, width), s)), Flat(rows), 0.5,
                          reference::ReductionTolerance(dtype()), absl::StrCat(what, " of ", where));
      };
      expect(0, batch.q_width(), want.q, "dq");
      expect(batch.q_width(), batch.kv_width(), want.k, "dk");
      expect(batch.q_width() + batch.kv_width(), batch.kv_width(), want.v, "dv");
    }
  }
}

// As transformers has it for gpt-oss: the sink is in the denominator, and is not dropped.
TEST_P(AttentionDropoutTest, SinksStayInTheDenominator) {
  const Batch batch(stream(), dtype(), {.heads = 2, .kv_heads = 1, .head_dim = 16, .sinks = {1.5, -0.5}}, {70, 3});
  for (const WholeSequence& s : batch.sequences) {
    const auto q = batch.Queries(s), k = batch.Keys(s), v = batch.Values(s);
    for (int32_t i = 0; i < s.num_rows; ++i) {
      ExpectNearAtScale(RowOf(batch.attended, s.first_row + i), reference::AttendOne(batch.Case(s), q[i], k, v, i), 0.5,
                        reference::ReductionTolerance(dtype()), absl::StrCat("row ", i));
    }
  }
}

TEST_P(AttentionDropoutTest, SequencesIgnoreCompanyAndThreads) {
  const Batch batch(stream(), dtype(), {.heads = 4, .kv_heads = 2, .head_dim = 24, .window = 40}, {70, 3, 130});
  ExpectThreadsDoNotMatter([&](const Stream& stream) {
    batch.Forward(stream);
    EXPECT_TRUE(batch.Backward(stream).ok());
    Tensor both(dtype(), {2 * batch.rows, batch.dqkv.dim(1)});
    std::memset(both.view().raw(), 0, both.bytes());
    for (int64_t t = 0; t < batch.rows; ++t) {
      for (int64_t c = 0; c < batch.q_width(); ++c) Set(both, t, c, Get(batch.attended, t, c));
      for (int64_t c = 0; c < batch.dqkv.dim(1); ++c) Set(both, batch.rows + t, c, Get(batch.dqkv, t, c));
    }
    return both;
  });
}

TEST_P(AttentionDropoutF64Test, IsTheGradientOfPagedAttention) {
  for (const int64_t window : {0, 3}) {
    const Batch batch(stream(), dtype(), {.heads = 4, .kv_heads = 2, .head_dim = 6, .window = window}, {9, 1});
    ASSERT_TRUE(batch.Backward(stream()).ok());
    ExpectIsGradient(batch.qkv, batch.dqkv, [&] {
      batch.Forward(stream());
      return Dot(batch.attended, batch.dattended);
    });
  }
}

TEST_P(AttentionDropoutTest, MisfitsAreNamed) {
  Batch batch(stream(), dtype(), {.heads = 1, .kv_heads = 1, .head_dim = 8}, {3});
  batch.keys.pop_back();
  ExpectNames(batch.Backward(stream()), "dropout has 2 keys for 3 rows");
  const SequenceRows rows = {.num_query = 3, .block_table = batch.blocks};
  AttentionDesc desc = batch.desc();
  ExpectNames(PagedAttention(stream(), desc, absl::MakeConstSpan(&rows, 1), batch.qkv.view().Columns(0, 8),
                             {batch.k, batch.v}, batch.attended),
              "dropout has 2 keys for 3 rows");
  desc.dropout.rate = 1;
  ExpectNames(PagedAttention(stream(), desc, absl::MakeConstSpan(&rows, 1), batch.qkv.view().Columns(0, 8),
                             {batch.k, batch.v}, batch.attended),
              "dropout 1 is outside [0, 1)");
}

SY_INSTANTIATE_OP_TEST(AttentionDropoutTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(AttentionDropoutF64Test, {DType::kF64});

}  // namespace
}  // namespace switchyard::ops
