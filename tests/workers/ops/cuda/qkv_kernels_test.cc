// The kernels that write the paged cache: cuda::WriteKv and cuda::Qkv (against the CPU's ops, one after the other).
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/workers/ops/cuda/paged_scene.h"

namespace switchyard::ops {
namespace {

bool SameBytes(const void* a, const void* b, int64_t bytes) { return std::memcmp(a, b, bytes) == 0; }
const char* RowBytes(const Tensor& t, int64_t row, int64_t element = 0) {
  return static_cast<const char*>(t.view().raw()) + (row * t.view().row_stride() + element) * DTypeBytes(t.dtype());
}

// The scene's positions hold these rows of the batch; every other slot is as poisoned as it was.
void ExpectCacheHolds(const PagedScene& scene, const Tensor& rows, int64_t first_column, bool values,
                      const std::string& where) {
  const int64_t dim = scene.shape().head_dim, bytes = dim * DTypeBytes(rows.dtype());
  const Tensor cache = scene.DownloadCache(values);
  std::vector<bool> written(cache.dim(0), false);
  int64_t row = 0;
  for (size_t s = 0; s < scene.sequences().size(); ++s) {
    for (int32_t i = 0; i < scene.sequences()[s].queries; ++i, ++row) {
      for (int64_t h = 0; h < scene.shape().kv_heads; ++h) {
        const int64_t at = scene.CacheRow(s, scene.sequences()[s].start + i, h);
        EXPECT_TRUE(SameBytes(RowBytes(cache, at), RowBytes(rows, row, first_column + h * dim), bytes))
            << where << " row " << row << " head " << h;
        written[at] = true;
      }
    }
  }
  const std::vector<unsigned char> poison(bytes, 0xff);
  for (int64_t at = 0; at < cache.dim(0); ++at) {
    if (written[at]) continue;
    EXPECT_TRUE(SameBytes(RowBytes(cache, at), poison.data(), bytes)) << where << ": slot " << at << " was written";
  }
}

const std::vector<SceneSequence>& MixedStep() {
  static const std::vector<SceneSequence> step = {{0, 5, 1}, {17, 1, 2}, {3, 0, 3}, {30, 4, 4}};
  return step;
}
constexpr ScenePadding kGraph = {.rows = 2, .sequences = 1, .decodes = 1, .tiles = 1, .keys = 100};

class WriteKvKernelTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(DTypes, WriteKvKernelTest, testing::ValuesIn(kAllDTypes), KernelTestName);

TEST_P(WriteKvKernelTest, PutsRowsInTheirPlaces) {
  for (int64_t block_size : {1, 16, 24}) {
    for (int64_t dim : {24, 64, 7}) {
      for (const MatrixLayout& layout : kLayouts) {
        const SceneShape shape = {
            .dtype = dtype(), .heads = 2, .kv_heads = 2, .head_dim = dim, .block_size = block_size};
        const PagedScene scene(shape, MixedStep(), kGraph, /*fill=*/false);
        const Tensor k = scene.BatchRows(1), v = scene.BatchRows(2);
        const DeviceMatrix k_rows = ToDevice(k.view(), layout), v_rows = ToDevice(v.view(), layout);
        const CudaKvArgs args = {.dtype = code(),
                                 .sequences = scene.device(),
                                 .k_rows = k_rows.get(),
                                 .v_rows = v_rows.get(),
                                 .k_stride = k_rows.stride(),
                                 .v_stride = v_rows.stride(),
                                 .k_cache = scene.k_cache(),
                                 .v_cache = scene.v_cache(),
                                 .kv_heads = 2,
                                 .block_size = block_size,
                                 .head_dim = dim};
        ASSERT_EQ(cuda::WriteKv(call(), args), 0);
        const std::string where = absl::StrCat(shape.Name(), " ", layout.name);
        ExpectCacheHolds(scene, k, 0, /*values=*/false, where);
        ExpectCacheHolds(scene, v, 0, /*values=*/true, where);
      }
    }
  }
}

TEST_P(WriteKvKernelTest, NoRows) {
  const PagedScene scene({.dtype = dtype()}, {}, {}, /*fill=*/false);
  CudaKvArgs args = {};
  args.sequences = scene.device();
  args.dtype = code(), args.kv_heads = 1, args.block_size = 16, args.head_dim = 64;
  EXPECT_EQ(cuda::WriteKv(call(), args), 0);
}

enum class Norm { kNone, kPerHead, kWhole };

struct QkvCase {
  int64_t heads, kv_heads, head_dim, half;
  Norm norm;
  double clip;
  std::string Name() const {
    return absl::StrCat("N=", heads, " Nkv=", kv_heads, " D=", head_dim, " half ", half, " norm ",
                        static_cast<int>(norm), " clip ", clip);
  }
};

struct QkvInputs {
  Tensor rows, q_gamma, k_gamma, cos, sin;
  std::vector<int32_t> table_rows;

  QkvInputs(DType dtype, const QkvCase& c, int64_t count)
      : rows(RandomMatrix(dtype, count, (c.heads + 2 * c.kv_heads) * c.head_dim, 1, 1.5)),
        q_gamma(RandomMatrix(dtype, 1, c.norm == Norm::kWhole ? c.heads * c.head_dim : c.head_dim, 2)),
        k_gamma(RandomMatrix(dtype, 1, c.norm == Norm::kWhole ? c.kv_heads * c.head_dim : c.head_dim, 3)),
        cos(RandomMatrix(AccDType(dtype), 40, std::max<int64_t>(c.half, 1), 4)),
        sin(RandomMatrix(AccDType(dtype), 40, std::max<int64_t>(c.half, 1), 5)),
        table_rows(count) {
    for (int64_t i = 0; i < count; ++i) table_rows[i] = static_cast<int32_t>(i * 7 % 40);
  }
};

// Where the inputs stand, on the host or on the device, and the ops that work there.
struct Place {
  void* rows;
  int64_t stride;
  const void *q_gamma, *k_gamma, *cos, *sin;
  const int32_t* table_rows;
};
struct Ops {
  std::function<void(const RmsNormArgs&)> norm;
  std::function<void(const ClampArgs&)> clamp;
  std::function<void(const RopeArgs&)> rope;
};

// One op after the other.
void ApplyOps(const QkvCase& c, DType dtype, const Place& at, const Ops& ops) {
  const auto code = static_cast<uint8_t>(dtype);
  for (bool key : {false, true}) {
    char* x = static_cast<char*>(at.rows) + (key ? c.heads * c.head_dim * DTypeBytes(dtype) : 0);
    const int64_t heads = key ? c.kv_heads : c.heads;
    if (c.norm == Norm::kNone) continue;
    ops.norm({.x_dtype = code,
              .dtype = code,
              .x = x,
              .gamma = key ? at.k_gamma : at.q_gamma,
              .y = x,
              .x_stride = at.stride,
              .y_stride = at.stride,
              .groups = c.norm == Norm::kWhole ? 1 : heads,
              .width = c.norm == Norm::kWhole ? heads * c.head_dim : c.head_dim,
              .eps = 1e-5});
  }
  const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_dim;
  if (c.clip > 0) ops.clamp({.dtype = code, .x = at.rows, .x_stride = at.stride, .width = width, .limit = c.clip});
  if (c.half == 0) return;
  ops.rope({.dtype = code,
            .cos = at.cos,
            .sin = at.sin,
            .table_rows = at.table_rows,
            .x = at.rows,
            .x_stride = at.stride,
            .heads = c.heads + c.kv_heads,
            .head_dim = c.head_dim,
            .half = c.half});
}

Tensor OnCpu(const QkvCase& c, const QkvInputs& in) {
  Tensor out = Copy(in.rows.view());
  const int64_t rows = out.dim(0);
  const Place place = {out.view().raw(),    out.dim(1),          in.q_gamma.view().raw(), in.k_gamma.view().raw(),
                       in.cos.view().raw(), in.sin.view().raw(), in.table_rows.data()};
  ApplyOps(c, out.dtype(), place,
           {.norm = [&](const RmsNormArgs& args) { CpuKernels().rms_norm(args, 0, rows); },
            .clamp = [&](const ClampArgs& args) { CpuKernels().clamp(args, 0, rows); },
            .rope = [&](const RopeArgs& args) { CpuKernels().rope(args, 0, rows); }});
  return out;
}

Tensor OnCuda(const CudaCall& call, const QkvCase& c, const QkvInputs& in) {
  const DeviceMatrix rows(in.rows.view());
  const DeviceMatrix q_gamma(in.q_gamma.view()), k_gamma(in.k_gamma.view()), cos(in.cos.view()), sin(in.sin.view());
  const DeviceArray<int32_t> table_rows(in.table_rows);
  const int64_t count = in.rows.dim(0);
  const Place place = {rows.get(), rows.stride(), q_gamma.get(), k_gamma.get(), cos.get(), sin.get(), table_rows.get()};
  ApplyOps(c, in.rows.dtype(), place,
           {.norm = [&](const RmsNormArgs& args) { EXPECT_EQ(cuda::RmsNorm(call, args, count), 0); },
            .clamp = [&](const ClampArgs& args) { EXPECT_EQ(cuda::Clamp(call, args, count), 0); },
            .rope = [&](const RopeArgs& args) { EXPECT_EQ(cuda::Rope(call, args, count), 0); }});
  return rows.Download();
}

class QkvKernelTest : public KernelTest {
 protected:
  // Runs the kernel over the scene; rows with table row -1 stay.  Returns the rows afterwards.
  Tensor Run(const QkvCase& c, const PagedScene& scene, const QkvInputs& in, const MatrixLayout& layout) {
    const DeviceMatrix rows = ToDevice(in.rows.view(), layout);
    const DeviceMatrix q_gamma(in.q_gamma.view()), k_gamma(in.k_gamma.view()), cos(in.cos.view()), sin(in.sin.view());
    const DeviceArray<int32_t> table_rows(in.table_rows);
    char* base = static_cast<char*>(rows.get());
    const int64_t head_bytes = c.head_dim * DTypeBytes(dtype());
    const CudaQkvArgs args = {.kv = {.dtype = code(),
                                     .sequences = scene.device(),
                                     .k_rows = base + c.heads * head_bytes,
                                     .v_rows = base + (c.heads + c.kv_heads) * head_bytes,
                                     .k_stride = rows.stride(),
                                     .v_stride = rows.stride(),
                                     .k_cache = scene.k_cache(),
                                     .v_cache = scene.v_cache(),
                                     .kv_heads = c.kv_heads,
                                     .block_size = scene.shape().block_size,
                                     .head_dim = c.head_dim},
                              .q_rows = base,
                              .q_stride = rows.stride(),
                              .heads = c.heads,
                              .q_gamma = c.norm == Norm::kNone ? nullptr : q_gamma.get(),
                              .k_gamma = c.norm == Norm::kNone ? nullptr : k_gamma.get(),
                              .norm_per_head = c.norm != Norm::kWhole,
                              .eps = 1e-5,
                              .clip = c.clip,
                              .cos = cos.get(),
                              .sin = sin.get(),
                              .table_rows = table_rows.get(),
                              .half = c.half};
    EXPECT_EQ(cuda::Qkv(call(), args), 0);
    return rows.Download();
  }
  PagedScene Scene(const QkvCase& c, const std::vector<SceneSequence>& sequences, const ScenePadding& padding) const {
    return PagedScene({.dtype = dtype(), .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim}, sequences,
                      padding, /*fill=*/false);
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, QkvKernelTest, testing::ValuesIn(kAllDTypes), KernelTestName);

const std::vector<QkvCase>& Cases() {
  static const std::vector<QkvCase> cases = {
      {4, 2, 64, 32, Norm::kNone, 0},       {4, 2, 64, 32, Norm::kPerHead, 0},  {4, 2, 64, 32, Norm::kWhole, 0},
      {3, 1, 24, 6, Norm::kPerHead, 0.75},  {5, 5, 24, 12, Norm::kWhole, 0.75}, {2, 1, 22, 11, Norm::kPerHead, 0},
      {2, 2, 128, 64, Norm::kPerHead, 0.5}, {1, 1, 256, 128, Norm::kNone, 0.5}, {2, 1, 64, 0, Norm::kNone, 0},
      {1, 1, 256, 128, Norm::kPerHead, 0},  {40, 1, 64, 32, Norm::kWhole, 0},
  };
  return cases;
}

TEST_P(QkvKernelTest, IsTheOpsOneAfterTheOther) {
  for (const QkvCase& c : Cases()) {
    for (const MatrixLayout& layout : kLayouts) {
      const PagedScene scene = Scene(c, MixedStep(), {});
      const QkvInputs in(dtype(), c, scene.num_rows());
      const std::string where = absl::StrCat(c.Name(), " ", layout.name);
      const Tensor out = Run(c, scene, in, layout);
      // Sums of squares are not in the CPU's order; all else rounds as there.
      ExpectLikeCpu(out.view(), OnCpu(c, in).view(), c.norm == Norm::kNone, where);
      // A step that transfers rows to other ranks runs the ops one by one: its rows may not differ.
      EXPECT_TRUE(SameBits(out.view(), 0, OnCuda(call(), c, in).view())) << where;
      ExpectCacheHolds(scene, out, c.heads * c.head_dim, /*values=*/false, where);
      ExpectCacheHolds(scene, out, (c.heads + c.kv_heads) * c.head_dim, /*values=*/true, where);
    }
  }
}

// A row of no sequence may be one of another rank (token rebalancing): it is computed, not cached.  A row without a row
// of the rotation table is padding and stays as it is.
TEST_P(QkvKernelTest, RowsOfNoSequence) {
  const QkvCase c = Cases()[1];
  const PagedScene scene = Scene(c, MixedStep(), kGraph);
  const int64_t given = scene.num_rows(), padding = given + 1;
  QkvInputs in(dtype(), c, padding + 1);
  const Tensor want = OnCpu(c, in);
  in.table_rows[padding] = -1;
  const Tensor out = Run(c, scene, in, kLayouts[0]);
  ExpectNear(RowOf(out, given), RowOf(want, given), reference::ReductionTolerance(dtype()), "transferred");
  EXPECT_TRUE(SameBits(out.view(), padding, in.rows.view().Rows(padding, 1)));
  ExpectCacheHolds(scene, out, c.heads * c.head_dim, /*values=*/false, "padded");
}

TEST_P(QkvKernelTest, NoRows) {
  for (const Norm norm : {Norm::kNone, Norm::kPerHead, Norm::kWhole}) {
    const QkvCase c = {4, 2, 64, 32, norm, 0};
    const QkvInputs in(dtype(), c, 0);
    EXPECT_EQ(Run(c, Scene(c, {}, {}), in, kLayouts[0]).dim(0), 0);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

TEST_P(QkvKernelTest, RowsIgnoreOtherRows) {
  for (const QkvCase& c : Cases()) {
    const PagedScene scene = Scene(c, MixedStep(), {});
    const QkvInputs in(dtype(), c, scene.num_rows());
    const Tensor all = Run(c, scene, in, kLayouts[0]);
    QkvInputs alone(dtype(), c, 1);
    const int64_t row = 5;  // the decode
    alone.rows = Copy(in.rows.view().Rows(row, 1));
    alone.table_rows = {in.table_rows[row]};
    const PagedScene one = Scene(c, {MixedStep()[1]}, {});
    EXPECT_TRUE(SameBits(all.view(), row, Run(c, one, alone, kLayouts[0]).view())) << c.Name();
  }
}

}  // namespace
}  // namespace switchyard::ops
