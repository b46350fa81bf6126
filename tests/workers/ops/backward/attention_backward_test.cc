#include "workers/ops/attention/attention_backward.h"

#include <numeric>

#include "tests/reference/attention.h"
#include "tests/workers/ops/backward/backward_test_util.h"
#include "workers/ops/attention/attention.h"

namespace switchyard::ops {
namespace {

// A batch of whole sequences, each followed by a row of no sequence.
struct Batch {
  reference::AttentionCase shape;
  std::vector<WholeSequence> sequences;
  int64_t rows = 0;
  Tensor qkv, attended, dattended, dqkv;

  Batch(DType dtype, reference::AttentionCase c, const std::vector<int32_t>& lengths) : shape(c) {
    shape.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    for (int32_t length : lengths) {
      sequences.push_back({static_cast<int32_t>(rows), length});
      rows += length + 1;
    }
    const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_dim;
    qkv = RandomMatrix(dtype, rows, width, 1), dattended = RandomMatrix(dtype, rows, c.heads * c.head_dim, 2);
    attended = Tensor(dtype, {rows, c.heads * c.head_dim}), dqkv = RandomMatrix(dtype, rows, width, 3);
    for (const WholeSequence& s : sequences) {
      const auto q = Queries(s), k = Keys(s), v = Values(s);
      for (int32_t i = 0; i < s.num_rows; ++i) {
        const std::vector<double> out = reference::AttendOne(shape, q[i], k, v, i);
        for (size_t c2 = 0; c2 < out.size(); ++c2) Set(attended, s.first_row + i, static_cast<int64_t>(c2), out[c2]);
      }
    }
  }

  AttentionBackwardDesc desc() const {
    return {.num_heads = shape.heads,
            .num_kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .scale = shape.scale,
            .window = static_cast<int32_t>(shape.window)};
  }
  int64_t q_width() const { return shape.heads * shape.head_dim; }
  int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }

  static std::vector<std::vector<double>> RowsOf(const TensorView& t, const WholeSequence& s) {
    std::vector<std::vector<double>> out;
    for (int32_t i = 0; i < s.num_rows; ++i) out.push_back(RowOf(t, s.first_row + i));
    return out;
  }
  std::vector<std::vector<double>> Queries(const WholeSequence& s) const {
    return RowsOf(qkv.view().Columns(0, q_width()), s);
  }
  std::vector<std::vector<double>> Keys(const WholeSequence& s) const {
    return RowsOf(qkv.view().Columns(q_width(), kv_width()), s);
  }
  std::vector<std::vector<double>> Values(const WholeSequence& s) const {
    return RowsOf(qkv.view().Columns(q_width() + kv_width(), kv_width()), s);
  }

  absl::Status Run(const Stream& stream) const {
    return AttentionBackward(stream, desc(), sequences, qkv, attended, dattended, dqkv);
  }
};

class AttentionBackwardTest : public OpTest {};
class AttentionBackwardF64Test : public OpTest {};

std::vector<double> Flat(const std::vector<std::vector<double>>& rows) {
  std::vector<double> out;
  for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
  return out;
}

TEST_P(AttentionBackwardTest, MatchesReference) {
  for (const reference::AttentionCase& c :
       std::vector<reference::AttentionCase>{{.heads = 1, .kv_heads = 1, .head_dim = 8},
                                             {.heads = 4, .kv_heads = 2, .head_dim = 40},
                                             {.heads = 3, .kv_heads = 1, .head_dim = 16, .window = 5},
                                             {.heads = 2, .kv_heads = 2, .head_dim = 20, .window = 70}}) {
    const Batch batch(dtype(), c, {1, 70, 0, 5, 130, 64});
    const Tensor before = Copy(batch.dqkv);
    ASSERT_TRUE(batch.Run(stream()).ok());
    for (const WholeSequence& s : batch.sequences) {
      const reference::AttentionGradients want = reference::AttendBackward(
          batch.shape, batch.Queries(s), batch.Keys(s), batch.Values(s), Batch::RowsOf(batch.dattended, s));
      const auto expect = [&](int64_t column, int64_t width, const std::vector<std::vector<double>>& rows,
                              const char* what) {
        // A row that sees itself alone has no gradient but that of its value.
        ExpectNearAtScale(Flat(Batch::RowsOf(batch.dqkv.view().Columns(column, width), s)), Flat(rows), 0.5,
                          reference::ReductionTolerance(dtype()),
                          absl::StrCat(what, " of ", s.num_rows, " rows, dim ", c.head_dim, " window ", c.window));
      };
      expect(0, batch.q_width(), want.q, "dq");
      expect(batch.q_width(), batch.kv_width(), want.k, "dk");
      expect(batch.q_width() + batch.kv_width(), batch.kv_width(), want.v, "dv");
      const int64_t after = s.first_row + s.num_rows;
      EXPECT_TRUE(SameBits(batch.dqkv, after, before.view().Rows(after, 1))) << "a row of no sequence was written";
    }
  }
}

TEST_P(AttentionBackwardTest, SequencesIgnoreCompanyAndThreads) {
  const Batch batch(dtype(), {.heads = 4, .kv_heads = 2, .head_dim = 24, .window = 40}, {70, 3, 130});
  ExpectThreadsDoNotMatter([&](const Stream& stream) {
    EXPECT_TRUE(batch.Run(stream).ok());
    return Copy(batch.dqkv);
  });
  for (const WholeSequence& s : batch.sequences) {
    const Tensor alone(dtype(), {s.num_rows, batch.dqkv.dim(1)});
    const WholeSequence only = {0, s.num_rows};
    const auto part = [&](const Tensor& t) { return t.view().Rows(s.first_row, s.num_rows); };
    ASSERT_TRUE(AttentionBackward(stream(), batch.desc(), {&only, 1}, part(batch.qkv), part(batch.attended),
                                  part(batch.dattended), alone)
                    .ok());
    EXPECT_TRUE(SameBits(batch.dqkv, s.first_row, alone));
  }
}

TEST_P(AttentionBackwardF64Test, IsTheGradientOfPagedAttention) {
  for (int64_t window : {0, 3}) {
    const Batch batch(dtype(), {.heads = 4, .kv_heads = 2, .head_dim = 6, .window = window}, {9, 1});
    ASSERT_TRUE(batch.Run(stream()).ok());
    const Shape shape = KvCacheShape(3, 2, 4, 6);
    const Tensor k(dtype(), shape), v(dtype(), shape), out(dtype(), batch.attended.shape());
    const std::vector<int32_t> blocks = {2, 0, 1};
    const auto loss = [&] {
      double sum = 0;
      for (const WholeSequence& s : batch.sequences) {
        const SequenceRows rows = {.row_begin = s.first_row, .num_query = s.num_rows, .block_table = blocks};
        const auto one = absl::MakeConstSpan(&rows, 1);
        SY_CHECK_OK(WriteKv(stream(), one, batch.qkv.view().Columns(24, 12), batch.qkv.view().Columns(36, 12), {k, v}));
        SY_CHECK_OK(PagedAttention(stream(),
                                   {.num_heads = 4, .scale = batch.shape.scale, .window = batch.desc().window}, one,
                                   batch.qkv.view().Columns(0, 24), {k, v}, out));
        sum += Dot(out.view().Rows(s.first_row, s.num_rows), batch.dattended.view().Rows(s.first_row, s.num_rows));
      }
      return sum;
    };
    for (const WholeSequence& s : batch.sequences) {
      ExpectIsGradient(batch.qkv.view().Rows(s.first_row, s.num_rows), batch.dqkv.view().Rows(s.first_row, s.num_rows),
                       loss);
    }
  }
}

TEST_P(AttentionBackwardTest, MisfitsAreNamed) {
  const Batch batch(dtype(), {.heads = 4, .kv_heads = 2, .head_dim = 8}, {3, 2});
  const auto run = [&](const AttentionBackwardDesc& desc, const std::vector<WholeSequence>& sequences,
                       const TensorView& attended) {
    return AttentionBackward(stream(), desc, sequences, batch.qkv, attended, batch.dattended, batch.dqkv);
  };
  AttentionBackwardDesc desc = batch.desc();
  ExpectNames(run(desc, {{0, 3}, {2, 2}}, batch.attended), "sequence 1 has rows [2, 4), must be in [3, 7)");
  ExpectNames(run(desc, {{0, 8}}, batch.attended), "sequence 0 has rows [0, 8)");
  ExpectNames(run(desc, {}, batch.qkv), "attended must be");
  desc.num_kv_heads = 3;
  ExpectNames(run(desc, {}, batch.attended), "4 heads over 3 kv heads");
}

SY_INSTANTIATE_OP_TEST(AttentionBackwardTest, kAllDTypes);
SY_INSTANTIATE_OP_TEST(AttentionBackwardF64Test, {DType::kF64});

}  // namespace
}  // namespace switchyard::ops
