#include "workers/train/parameters/parameter_files.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"

namespace switchyard::train {
namespace {

constexpr int64_t kPieceElements = 64 << 10;
constexpr int64_t kReadBytes = 16 << 20;  // of one read

// Of the tensors of kState.
constexpr const char* kSuffixes[] = {".master", ".exp_avg", ".exp_avg_sq"};

// The values of a block that are one tensor of the checkpoint.
TensorView RowsOf(const Tensor& block, const model::Param& part) {
  const TensorView values = block.view().Reshape({block.view().NumElements()});
  return values.Rows(part.first_row * part.columns, part.rows * part.columns);
}

// Appends `count` values at `from`, rounded to another dtype.
void Round(DType from_dtype, const void* from, int64_t count, DType dtype, std::string* out) {
  out->resize(static_cast<size_t>(count * DTypeBytes(dtype)));
  VisitDType(from_dtype, [&]<class From>() {
    VisitDType(dtype, [&]<class To>() {
      const From* const values = static_cast<const From*>(from);
      To* const to = reinterpret_cast<To*>(out->data());
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(static_cast<Acc<From>>(values[i]));
    });
  });
}

// Values of a view, rounded to dtype, a piece at a time.
std::function<absl::Status(checkpoint::ByteSink)> Rounded(const TensorView& values, DType dtype) {
  if (values.dtype() == dtype) return checkpoint::BytesAt(values.raw(), values.NumElements() * DTypeBytes(dtype));
  return [values, dtype](checkpoint::ByteSink sink) -> absl::Status {
    std::string piece;
    for (int64_t begin = 0; begin < values.NumElements(); begin += kPieceElements) {
      const char* const from = static_cast<const char*>(values.raw()) + begin * DTypeBytes(values.dtype());
      Round(values.dtype(), from, std::min(kPieceElements, values.NumElements() - begin), dtype, &piece);
      RETURN_IF_ERROR(sink(piece));
    }
    return absl::OkStatus();
  };
}

// Reads bytes [at, at + to.size()) of some values.
using ReadFn = std::function<absl::Status(int64_t at, absl::Span<char> to)>;

// The same of `count` values that are read piece by piece, in order.
std::function<absl::Status(checkpoint::ByteSink)> RoundedOf(ReadFn read, int64_t count, DType from, DType dtype) {
  return [=](checkpoint::ByteSink sink) -> absl::Status {
    std::string values, piece;
    for (int64_t begin = 0; begin < count; begin += kPieceElements) {
      const int64_t here = std::min(kPieceElements, count - begin);
      values.resize(static_cast<size_t>(here * DTypeBytes(from)));
      RETURN_IF_ERROR(read(begin * DTypeBytes(from), absl::MakeSpan(values.data(), values.size())));
      if (from != dtype) Round(from, values.data(), here, dtype, &piece);
      RETURN_IF_ERROR(sink(from == dtype ? values : piece));
    }
    return absl::OkStatus();
  };
}

// A part's values of one of kState, in dtype or (none) in the dtype of the state.
checkpoint::TensorToWrite ToWrite(const ParameterBlock& block, const model::Param& part, size_t kept,
                                  std::optional<DType> dtype, ShardStream* shards) {
  checkpoint::TensorToWrite tensor = {.name = part.name, .shape = part.shape, .contents = nullptr};
  if (block.is_sharded()) {
    const DType from = block.master.dtype();
    tensor.dtype = dtype.value_or(from);
    const auto read = [shards](int64_t, absl::Span<char> to) { return shards->Read(to); };
    tensor.contents = RoundedOf(read, part.rows * part.columns, from, tensor.dtype);
    return tensor;
  }
  if (block.offloaded == nullptr) {
    const TensorView values = RowsOf(block.*kState[kept], part);
    tensor.dtype = dtype.value_or(values.dtype());
    tensor.contents = Rounded(values, tensor.dtype);
    return tensor;
  }
  const DType from = AccDType(block.weight != nullptr ? block.weight->dtype() : block.tensor->dtype());
  const int64_t first = part.first_row * part.columns * DTypeBytes(from);
  const int64_t at = block.offloaded_at + static_cast<int64_t>(kept) * block.size() * DTypeBytes(from) + first;
  tensor.dtype = dtype.value_or(from);
  const auto read = [file = block.offloaded, at](int64_t begin, absl::Span<char> to) {
    return file->Read(at + begin, to);
  };
  tensor.contents = RoundedOf(read, part.rows * part.columns, from, tensor.dtype);
  return tensor;
}

// Other ranks do not wait until this one has written its experts.
void FinishBefore(ShardStream* shards, checkpoint::TensorToWrite* tensor) {
  tensor->contents = [shards, contents = std::move(tensor->contents)](checkpoint::ByteSink sink) {
    RETURN_IF_ERROR(shards->Finish());
    return contents(sink);
  };
}

absl::Status Wrong(const std::string& tensor, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor, "\": ", problem));
}

// Restores one of kState of a part: of the elements that this rank has.
absl::Status Restore(const checkpoint::ShardTable& table, const ParameterBlock& block, const model::Param& part,
                     size_t kept, const checkpoint::OnRead& on_read) {
  const std::string name = absl::StrCat(part.name, kSuffixes[kept]);
  const ElementRange all = {part.first_row * part.columns, part.rows * part.columns};
  const ElementRange here = Intersect(all, block.own());
  if (here.count == 0) return absl::OkStatus();
  const TensorView to = block.StateAt(kState[kept], here);
  const std::optional<checkpoint::ShardTable::Place> place = table.Find(name);
  if (!place.has_value()) return Wrong(name, "is missing in the optimizer's files");
  ASSIGN_OR_RETURN(const DType dtype, checkpoint::ParseSafetensorsDType(place->entry.dtype));
  if (dtype != to.dtype() || place->entry.shape != part.shape) {
    return Wrong(name, absl::StrCat("expected ", DTypeName(to.dtype()), " [", absl::StrJoin(part.shape, ", "),
                                    "], found ", DTypeName(dtype), " ", place->entry.ShapeString()));
  }
  const int64_t first = (here.begin - all.begin) * DTypeBytes(dtype), bytes = here.count * DTypeBytes(dtype);
  for (int64_t begin = 0; begin < bytes; begin += kReadBytes) {
    const int64_t count = std::min(kReadBytes, bytes - begin);
    RETURN_IF_ERROR(table.Read(*place, first + begin,
                               absl::MakeSpan(static_cast<char*>(to.raw()) + begin, static_cast<size_t>(count))));
    if (on_read) RETURN_IF_ERROR(on_read(count));
  }
  return absl::OkStatus();
}

}  // namespace

bool WritesBlock(const ParameterBlock& block, int rank) {
  if (block.base) return false;
  return block.shard == model::Shard::kExpert ? block.replica == 0 : rank == block.writer;
}

std::vector<checkpoint::CheckpointFile> ParameterFiles(absl::Span<const ParameterBlock> blocks, int rank, int world,
                                                       const WeightsForm& form, ShardStream* shards) {
  checkpoint::CheckpointFile model = {.name = absl::StrFormat("model-%05d-of-%05d.safetensors", rank + 1, world)};
  if (form.adapters) model.name = kAdapterFile;
  checkpoint::CheckpointFile optimizer = {.name = absl::StrFormat("optimizer-rank%05d.safetensors", rank)};
  const auto append = [&](const ParameterBlock& block) {
    const bool in_model = !form.adapters || block.shard != model::Shard::kExpert;
    for (const model::Param& part : block.parts) {
      if (in_model)
        model.tensors.push_back(ToWrite(block, part, 0, part.router_bias ? DType::kF32 : form.dtype, shards));
      for (size_t kept = 0; kept < StateOf(block).size(); ++kept) {
        optimizer.tensors.push_back(ToWrite(block, part, kept, std::nullopt, shards));
        optimizer.tensors.back().name += kSuffixes[kept];
      }
    }
  };
  for (const model::Shard shard : {model::Shard::kReplicated, model::Shard::kExpert}) {
    const size_t first = optimizer.tensors.size();
    for (const ParameterBlock& block : blocks) {
      if (block.shard == shard && WritesBlock(block, rank)) append(block);
    }
    const bool experts = shard == model::Shard::kExpert && first < optimizer.tensors.size();
    if (experts && shards != nullptr) FinishBefore(shards, &optimizer.tensors[first]);
  }
  std::vector<checkpoint::CheckpointFile> files;
  if (!form.adapters || rank == 0) files.push_back(std::move(model));
  if (!form.adapters || rank == 0 || !optimizer.tensors.empty()) files.push_back(std::move(optimizer));
  return files;
}

absl::Status RestoreParameters(const checkpoint::ShardTable& optimizer, Parameters* parameters,
                               const checkpoint::OnRead& on_read) {
  return parameters->ForEachGroup(StateAccess::kUpdate, [&](absl::Span<ParameterBlock* const> group) -> absl::Status {
    for (const ParameterBlock* block : group) {
      for (const model::Param& part : block->parts) {
        for (size_t kept = 0; kept < StateOf(*block).size(); ++kept) {
          RETURN_IF_ERROR(Restore(optimizer, *block, part, kept, on_read));
        }
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace switchyard::train
