#include "workers/ops/gemm/gemm_choice_cuda.h"

#include <algorithm>
#include <ostream>

#include "workers/ops/gemm/quantized/weight_format.h"
#include "workers/tensor/dtype.h"

namespace switchyard::ops {
namespace {

static_assert(kCudaF32 == static_cast<uint8_t>(DType::kF32) && kCudaF64 == static_cast<uint8_t>(DType::kF64) &&
              kCudaBf16 == static_cast<uint8_t>(DType::kBf16) && kCudaF16 == static_cast<uint8_t>(DType::kF16));

static_assert(kCudaInt8 == static_cast<uint8_t>(WeightFormat::kInt8) &&
              kCudaInt4 == static_cast<uint8_t>(WeightFormat::kInt4) &&
              kCudaQ8_0 == static_cast<uint8_t>(WeightFormat::kQ8_0) &&
              kCudaQ4_0 == static_cast<uint8_t>(WeightFormat::kQ4_0) &&
              kCudaQ4_1 == static_cast<uint8_t>(WeightFormat::kQ4_1) &&
              kCudaMxfp4 == static_cast<uint8_t>(WeightFormat::kMxfp4) &&
              kCudaQ6_K == static_cast<uint8_t>(WeightFormat::kQ6_K) &&
              kCudaPlainRows == static_cast<uint8_t>(WeightFormat::kPlain));

// Up to here our kernel streams the weights of a dense product once, for all rows; above, the library is better.
constexpr int64_t kMaxOwnDenseRows = 16;

// With fewer rows an expert, most of a wgmma's 64 tokens would be none, and the other tiles draw the memory's
// bandwidth.
constexpr int64_t kMinWgmmaRows = 24;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A bound on the tiles of such a product: each expert may have one that is not full.
int64_t NumTiles(const CudaGemmDesc& desc, int columns, int rows) {
  const int64_t experts = std::max<int64_t>(desc.experts, 1);
  const int64_t row_tiles = std::min(desc.m, desc.m / rows + std::min(experts, desc.m));
  return CeilDiv(desc.n, columns) * std::max<int64_t>(row_tiles, 1);
}

// The tokens of a tile.  Grouped: rows are not spread evenly, so twice an expert's share; a tile that is too high
// wastes tensor-core time, which is free while weights stream in, and one too low reads weights again (from L2).
int WantedRows(const CudaGemmDesc& desc) {
  const int64_t share = desc.experts == 0 ? desc.m : CeilDiv(2 * desc.m, desc.experts);
  for (int rows : {8, 16, 32, 64}) {
    if (share <= rows) return rows;
  }
  return 128;
}

bool WantsWgmma(const CudaGemmDesc& desc) {
  return desc.wgmma && !desc.deterministic && !desc.ends_otherwise &&
         desc.m > kMinWgmmaRows * std::max<int64_t>(desc.experts, 1);
}

bool Fits(const CudaGemmDesc& desc, const CudaGemmTile& tile) {
  return CudaGemmSharedBytes(tile, std::max<int64_t>(desc.experts, 1)) <= desc.shared_bytes;
}

const char* RejectWgmma(const CudaGemmDesc& desc) {
  if (!desc.wgmma) return "needs a Hopper, and code for sm_90a";
  if (desc.deterministic) return "adds up in another order than other tiles, and bits must not depend on the shape";
  if (desc.ends_otherwise) return "has no registers left for weights' own biases and bounds";
  if (!WantsWgmma(desc)) return "too few tokens an expert";
  return nullptr;
}

const char* RejectTile(const CudaGemmDesc& desc, const CudaGemmTile& tile, int wanted_rows, bool few_columns) {
  if (tile.wgmma) return RejectWgmma(desc);
  if (WantsWgmma(desc)) return "wgmma is faster with so many tokens";
  if (tile.warps_k > 1 && desc.deterministic) return "splits k, and bits must not depend on the shape";
  const bool narrow = tile.columns == 16;
  if (narrow && !few_columns) return "tiles of more columns keep every SM busy, too";
  if (!narrow && few_columns) return "too few tiles to draw the full bandwidth";
  // The narrow tiles take 8 or 32 tokens.
  const int rows = narrow ? (wanted_rows <= 8 ? 8 : 32) : wanted_rows;
  if (tile.rows != rows) return tile.rows < rows ? "too few tokens a tile" : "more tokens a tile than there are";
  if (narrow && tile.rows == 8 && tile.warps_k == 1 && !desc.deterministic) return "one warp's chain is the slower one";
  return nullptr;
}

// In place of a tile that does not fit: the largest that does, with no more tokens than wanted; -1: none.
int LargestThatFits(const CudaGemmDesc& desc, int wanted_rows) {
  int largest = -1;
  for (int i = 0; i < kNumCudaGemmTiles; ++i) {
    const CudaGemmTile& tile = kCudaGemmTiles[i];
    if (tile.wgmma || tile.warps_k > 1 || tile.rows > wanted_rows || !Fits(desc, tile)) continue;
    if (largest >= 0 && tile.columns * tile.rows <= kCudaGemmTiles[largest].columns * kCudaGemmTiles[largest].rows) {
      continue;
    }
    largest = i;
  }
  return largest;
}

// Tiles of config, by `desc`: which, or why not.
void ChooseTile(const CudaGemmDesc& desc, CudaGemmConfig* config) {
  const int wanted_rows = WantedRows(desc);
  // Fewer tiles of 64 columns than SMs: their buffers together are less than the memory's latency wants in flight.
  const bool few_columns = wanted_rows <= 32 && NumTiles(desc, 64, wanted_rows) < desc.num_sms;
  for (int i = 0; i < kNumCudaGemmTiles; ++i) {
    const CudaGemmTile& tile = kCudaGemmTiles[i];
    const char*& why = config->not_tile[i];
    why = RejectTile(desc, tile, wanted_rows, few_columns);
    if (why == nullptr && !Fits(desc, tile)) why = "takes more shared memory than a block has";
    if (why == nullptr && config->tile < 0) config->tile = i;
  }
  if (config->tile < 0) config->tile = LargestThatFits(desc, wanted_rows);
  if (config->tile >= 0) config->not_tile[config->tile] = nullptr;
}

}  // namespace

CudaGemmConfig ChooseOwnDense(const CudaGemmDesc& desc) {
  CudaGemmConfig config{.not_cublas = "asked for an own kernel"};
  const int64_t plain_grid = std::min<int64_t>(
      NumTiles(desc, desc.gated ? 2 * kCudaPlainTile : kCudaPlainTile, kCudaPlainTile), int64_t{desc.num_sms} * 8);
  if (desc.dtype == kCudaF32 || desc.dtype == kCudaF64 || desc.k % 8 != 0) {
    config.grid = plain_grid;
    for (const char*& why : config.not_tile) {
      why = desc.k % 8 != 0 ? "k is no multiple of 8" : "the tensor cores would round fp32 and fp64";
    }
    return config;
  }
  ChooseTile(desc, &config);
  if (config.tile < 0) {  // so many experts that no tile has room beside them
    config.grid = plain_grid;
    return config;
  }
  config.kind = CudaGemmKind::kTiles;
  config.not_plain = "the tensor cores take this dtype and k";
  const CudaGemmTile& tile = kCudaGemmTiles[config.tile];
  config.grid = std::min<int64_t>(NumTiles(desc, tile.columns, tile.rows), int64_t{desc.num_sms} * tile.ctas_per_sm);
  return config;
}

CudaGemmConfig ChooseGrouped(const CudaGemmDesc& desc) {
  CudaGemmConfig config = ChooseOwnDense(desc);
  config.not_cublas = "rows per expert are known on the device only";
  return config;
}

CudaGemmConfig ChooseDense(const CudaGemmDesc& desc) {
  const bool tensor_cores = desc.dtype == kCudaBf16 || desc.dtype == kCudaF16;
  const char* not_cublas = nullptr;
  if (desc.gated) {
    not_cublas = "SwiGLU is not in its epilogues";
  } else if (desc.ends_otherwise) {
    not_cublas = "its epilogues have no biases of a gate, and no bounds";
  } else if (desc.deterministic) {
    not_cublas = "its algorithm, and so the bits, depend on m";
  } else if (tensor_cores && !desc.aligned) {
    not_cublas = "rows do not begin at multiples of 16 bytes";
  } else if (tensor_cores && desc.k % 8 == 0 && desc.m <= kMaxOwnDenseRows) {
    not_cublas = "so few rows are streaming of weights";
  }
  CudaGemmConfig config;
  if (not_cublas != nullptr) {
    config = ChooseOwnDense(desc);
    config.not_cublas = not_cublas;
    return config;
  }
  config.kind = CudaGemmKind::kCublasLt;
  config.not_plain = "the library is faster";
  for (const char*& why : config.not_tile) why = "the library is faster";
  return config;
}

CudaBitsConfig ChooseBits(const CudaGemmDesc& desc, uint8_t format) {
  const int words = format == kCudaInt8 || format == kCudaQ8_0 ? 8 : format == kCudaQ6_K ? 6 : 4;
  const int scale_sets = format == kCudaQ4_1 || format == kCudaQ6_K ? 2 : 1;
  const int wanted = WantedRows(desc), rows = wanted <= 8 ? 8 : wanted <= 32 ? 32 : 128;
  const bool few_columns = rows <= 32 && NumTiles(desc, 64, rows) < desc.num_sms;
  const auto bytes_of = [&](const CudaBitsTile& tile) {
    return CudaBitsSharedBytes(tile, words, scale_sets, std::max<int64_t>(desc.experts, 1));
  };
  CudaBitsConfig config;
  int largest = -1;  // that has room, where the one that is wanted has none
  for (int i = 0; i < kNumCudaBitsTiles; ++i) {
    const CudaBitsTile& tile = kCudaBitsTiles[i];
    const char*& why = config.not_tile[i];
    if (tile.warps_k > 1 && desc.deterministic) {
      why = "splits k, and bits must not depend on the shape";
      continue;
    }
    const bool fits = bytes_of(tile) <= desc.shared_bytes;
    if (fits && tile.warps_k == 1 && tile.rows <= rows) largest = i;
    if ((tile.columns == 16) != few_columns) {
      why = few_columns ? "too few tiles to draw the full bandwidth" : "tiles of more columns keep every SM busy, too";
    } else if (tile.rows != rows) {
      why = tile.rows < rows ? "too few tokens a tile" : "more tokens a tile than there are";
    } else if (!fits) {
      why = "takes more shared memory than a block has";
    } else if (config.tile < 0) {
      config.tile = i;
    } else {
      why = "one warp's chain is the slower one";
    }
  }
  if (config.tile < 0) config.tile = largest;
  if (config.tile < 0) return config;
  config.not_tile[config.tile] = nullptr;
  const CudaBitsTile& tile = kCudaBitsTiles[config.tile];
  // An SM has 1 KB more than a block may, and each CTA costs one.
  const int64_t room = (desc.shared_bytes + 1024) / (bytes_of(tile) + 1024);
  const int64_t ctas = std::clamp<int64_t>(room, 1, tile.ctas_per_sm);
  config.grid = std::min<int64_t>(NumTiles(desc, tile.columns, tile.rows), desc.num_sms * ctas);
  return config;
}

std::ostream& operator<<(std::ostream& out, const CudaBitsConfig& config) {
  if (config.tile >= 0) out << kCudaBitsTiles[config.tile].name << " on " << config.grid << " CTAs";
  for (int i = 0; i < kNumCudaBitsTiles; ++i) {
    if (config.not_tile[i] != nullptr) out << "; not " << kCudaBitsTiles[i].name << ": " << config.not_tile[i];
  }
  return out;
}

std::ostream& operator<<(std::ostream& out, const CudaGemmDesc& desc) {
  out << DTypeName(static_cast<DType>(desc.dtype)) << " " << desc.m << "x" << desc.n << "x" << desc.k;
  if (desc.experts > 0) out << " over " << desc.experts << " experts";
  return out << (desc.gated ? " gated" : "") << (desc.deterministic ? " deterministic" : "")
             << (desc.aligned ? "" : " unaligned") << (desc.wgmma ? " with wgmma" : "")
             << (desc.ends_otherwise ? " with biases or bounds" : "") << " on " << desc.num_sms << " SMs of "
             << (desc.shared_bytes >> 10) << " KB a block";
}

std::ostream& operator<<(std::ostream& out, const CudaGemmConfig& config) {
  if (config.kind == CudaGemmKind::kCublasLt) out << "cublaslt";
  if (config.kind == CudaGemmKind::kPlain) out << "plain on " << config.grid << " CTAs";
  if (config.kind == CudaGemmKind::kTiles) out << kCudaGemmTiles[config.tile].name << " on " << config.grid << " CTAs";
  if (config.not_cublas != nullptr) out << "; not cublaslt: " << config.not_cublas;
  if (config.not_plain != nullptr) out << "; not plain: " << config.not_plain;
  for (int i = 0; i < kNumCudaGemmTiles; ++i) {
    if (config.not_tile[i] != nullptr) out << "; not " << kCudaGemmTiles[i].name << ": " << config.not_tile[i];
  }
  return out;
}

}  // namespace switchyard::ops
