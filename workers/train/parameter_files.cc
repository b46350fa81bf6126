#include "workers/train/parameter_files.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

constexpr int64_t kPieceElements = 64 << 10;

struct Kept {
  const char* suffix;
  Tensor ParameterBlock::*tensor;
};
constexpr Kept kKept[] = {{".master", &ParameterBlock::master},
                          {".exp_avg", &ParameterBlock::mean},
                          {".exp_avg_sq", &ParameterBlock::mean_squares}};

// The values of a block that are one tensor of the checkpoint.
TensorView RowsOf(const Tensor& block, const Param& part) {
  const TensorView values = block.view().Reshape({block.view().NumElements()});
  return values.Rows(part.first_row * part.columns, part.rows * part.columns);
}

// Values of a view, rounded to dtype, a piece at a time.
std::function<absl::Status(ByteSink)> Rounded(const TensorView& values, DType dtype) {
  if (values.dtype() == dtype) return BytesAt(values.raw(), values.NumElements() * DTypeBytes(dtype));
  return [values, dtype](ByteSink sink) -> absl::Status {
    std::string piece;
    for (int64_t begin = 0; begin < values.NumElements(); begin += kPieceElements) {
      const int64_t count = std::min(kPieceElements, values.NumElements() - begin);
      piece.resize(static_cast<size_t>(count * DTypeBytes(dtype)));
      VisitDType(values.dtype(), [&]<class From>() {
        VisitDType(dtype, [&]<class To>() {
          const From* const from = values.data<From>() + begin;
          To* const to = reinterpret_cast<To*>(piece.data());
          for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(static_cast<Acc<From>>(from[i]));
        });
      });
      RETURN_IF_ERROR(sink(piece));
    }
    return absl::OkStatus();
  };
}

absl::Status Wrong(const std::string& tensor, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor, "\": ", problem));
}

absl::Status Restore(const ShardTable& table, const std::string& name, const std::vector<int64_t>& shape,
                     const TensorView& to) {
  const std::optional<ShardTable::Place> place = table.Find(name);
  if (!place.has_value()) return Wrong(name, "is missing in the optimizer's files");
  DType dtype;
  ASSIGN_OR_RETURN(dtype, ParseSafetensorsDType(place->entry.dtype));
  if (dtype != to.dtype() || place->entry.shape != shape) {
    return Wrong(name, absl::StrCat("expected ", DTypeName(to.dtype()), " [", absl::StrJoin(shape, ", "), "], found ",
                                    DTypeName(dtype), " ", place->entry.ShapeString()));
  }
  return table.Read(*place, 0, absl::MakeSpan(static_cast<char*>(to.raw()), static_cast<size_t>(place->entry.bytes)));
}

}  // namespace

bool WritesBlock(const ParameterBlock& block, int rank) {
  return block.shard == Shard::kExpert ? block.replica == 0 : rank == 0;
}

std::vector<CheckpointFile> ParameterFiles(absl::Span<const ParameterBlock> blocks, int rank, int world,
                                           DType weights) {
  CheckpointFile model = {.name = absl::StrFormat("model-%05d-of-%05d.safetensors", rank + 1, world)};
  CheckpointFile optimizer = {.name = absl::StrFormat("optimizer-rank%05d.safetensors", rank)};
  for (const ParameterBlock& block : blocks) {
    if (!WritesBlock(block, rank)) continue;
    for (const Param& part : block.parts) {
      const DType dtype = part.router_bias ? DType::kF32 : weights;
      model.tensors.push_back({.name = part.name,
                               .dtype = dtype,
                               .shape = part.shape,
                               .contents = Rounded(RowsOf(block.master, part), dtype)});
      for (const Kept& kept : kKept) {
        const TensorView values = RowsOf(block.*kept.tensor, part);
        optimizer.tensors.push_back({.name = absl::StrCat(part.name, kept.suffix),
                                     .dtype = values.dtype(),
                                     .shape = part.shape,
                                     .contents = Rounded(values, values.dtype())});
      }
    }
  }
  std::vector<CheckpointFile> files;
  files.push_back(std::move(model));
  files.push_back(std::move(optimizer));
  return files;
}

absl::Status RestoreParameters(const ShardTable& optimizer, Parameters* parameters) {
  for (ParameterBlock& block : parameters->blocks()) {
    for (const Param& part : block.parts) {
      for (const Kept& kept : kKept) {
        RETURN_IF_ERROR(
            Restore(optimizer, absl::StrCat(part.name, kept.suffix), part.shape, RowsOf(block.*kept.tensor, part)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard
