#include "workers/checkpoint/adapters/lora_adapter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/adapters/fused_experts.h"
#include "workers/checkpoint/adapters/peft_config.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"
#include "workers/checkpoint/tensors/weights_file.h"
#include "workers/tensor/dtype.h"

namespace switchyard::checkpoint {
namespace {

constexpr char kWeights[] = "adapter_model.safetensors";
constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kPieceBytes = 4 << 20;  // of a read, a multiple of any dtype's size

absl::Status Wrong(const std::string& tensor, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(kWeights, ": tensor \"", tensor, "\": ", problem));
}

absl::StatusOr<std::vector<float>> ReadFloats(const WeightsFile& file, const std::string& name,
                                              const TensorEntry& entry) {
  const absl::StatusOr<DType> dtype = ParseSafetensorsDType(entry.dtype);
  if (!dtype.ok() || !IsFloating(*dtype)) return Wrong(name, absl::StrCat("is ", entry.dtype, ", no floating dtype"));
  std::vector<float> values(static_cast<size_t>(entry.bytes / DTypeBytes(*dtype)));
  std::vector<char> piece(static_cast<size_t>(std::min(entry.bytes, kPieceBytes)));
  for (int64_t at = 0; at < entry.bytes; at += kPieceBytes) {
    const int64_t bytes = std::min(entry.bytes - at, kPieceBytes);
    RETURN_IF_ERROR(file.Read(entry.begin + at, bytes, piece.data()));
    VisitDType(*dtype, [&]<class Elem>() {
      const Elem* const from = reinterpret_cast<const Elem*>(piece.data());
      float* const to = values.data() + at / static_cast<int64_t>(sizeof(Elem));
      for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof(Elem)); ++i) to[i] = static_cast<float>(from[i]);
    });
  }
  for (const float value : values) {
    if (!std::isfinite(value)) return Wrong(name, "has NaN or Inf");
  }
  return values;
}

// The two halves of a matrix's adapter, as they are found.
struct Halves {
  const NamedTensor *a = nullptr, *b = nullptr;

  const std::string& tensor() const { return (a != nullptr ? a : b)->first; }
};

absl::StatusOr<std::map<std::string, Halves>> FindHalves(const WeightsFile& file) {
  std::map<std::string, Halves> all;
  for (const NamedTensor& tensor : file.tensors()) {
    absl::string_view module = tensor.first;
    const bool known = absl::ConsumePrefix(&module, "base_model.model.");
    const bool is_a = absl::ConsumeSuffix(&module, ".lora_A.weight");
    if (!known || (!is_a && !absl::ConsumeSuffix(&module, ".lora_B.weight"))) {
      return Wrong(tensor.first, "is no base_model.model.….lora_A.weight or ….lora_B.weight");
    }
    if (tensor.second.shape.size() != 2) {
      return Wrong(tensor.first, absl::StrCat("is ", tensor.second.ShapeString(), ", no matrix"));
    }
    Halves& halves = all[absl::StrCat(module, ".weight")];
    (is_a ? halves.a : halves.b) = &tensor;
  }
  if (all.empty()) return absl::InvalidArgumentError(absl::StrCat(kWeights, ": has no adapters"));
  return all;
}

// Whether the values fit, before any is read.
absl::Status CheckSize(const WeightsFile& file, int64_t available) {
  absl::int128 bytes = 0;  // in fp32
  for (const auto& [name, entry] : file.tensors()) {
    const absl::StatusOr<DType> dtype = ParseSafetensorsDType(entry.dtype);
    if (dtype.ok()) bytes += absl::int128(entry.bytes / DTypeBytes(*dtype)) * DTypeBytes(DType::kF32);
  }
  const auto shown = static_cast<int64_t>(std::min<absl::int128>(bytes, std::numeric_limits<int64_t>::max()));
  const std::string text = absl::StrCat(kWeights, ": has ", shown, " bytes of values in fp32, ");
  if (bytes > kMaxAdapterBytes) return absl::InvalidArgumentError(absl::StrCat(text, "at most ", kMaxAdapterBytes));
  if (bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat(text, available, " bytes of memory are available"));
  }
  return absl::OkStatus();
}

// Reads the modules of a file.
class AdapterReader {
 public:
  // Borrows all of it.
  AdapterReader(const WeightsFile& file, const PeftConfig& config, std::map<std::string, AdaptedMatrix>* to)
      : file_(file), config_(config), to_(*to) {}

  // Adds what a module's two halves adapt.  name: "….q_proj.weight".
  absl::Status Read(const std::string& name, const Halves& halves);
  // After all modules: whether what target_parameters names is there.
  absl::Status CheckWhole() const;
  int64_t num_experts() const { return num_experts_; }

 private:
  // The adapter of a matrix or, fused, of a matrix of each expert.
  absl::StatusOr<AdaptedMatrix> ReadMatrix(const std::string& name, const Halves& halves, const RankAndAlpha& of,
                                           bool fused);
  absl::Status ReadExperts(const std::string& name, absl::string_view layer, bool inner, const Halves& halves);

  const WeightsFile& file_;
  const PeftConfig& config_;
  std::map<std::string, AdaptedMatrix>& to_;
  int64_t num_experts_ = 0;                                   // of fused tensors; 0: there was none
  std::string counted_;                                       // the tensor that says so
  std::map<std::string, std::set<std::string>> projections_;  // of experts, by the layer
};

absl::StatusOr<AdaptedMatrix> AdapterReader::ReadMatrix(const std::string& name, const Halves& halves,
                                                        const RankAndAlpha& of, bool fused) {
  if (halves.a == nullptr || halves.b == nullptr) {
    return Wrong(halves.tensor(), absl::StrCat("its ", halves.a == nullptr ? "lora_A" : "lora_B", " is missing"));
  }
  const std::vector<int64_t>&a = halves.a->second.shape, &b = halves.b->second.shape;
  // Of all experts together, or of the one matrix.
  if (fused ? a[0] % of.rank != 0 : a[0] != of.rank) {
    return Wrong(halves.a->first, absl::StrCat("is ", halves.a->second.ShapeString(), ", r in ", kPeftConfigName,
                                               " is ", of.rank, fused ? " for each expert" : ""));
  }
  if (a[0] != b[1] || a[0] == 0 || a[1] == 0 || b[0] == 0) {
    return Wrong(halves.b->first, absl::StrCat("is ", halves.b->second.ShapeString(), ", lora_A of ", name, " is ",
                                               halves.a->second.ShapeString()));
  }
  AdaptedMatrix matrix = {
      .rank = of.rank, .rows = b[0], .columns = a[1], .scale = config_.ScaleOf(of), .a = {}, .b = {}};
  ASSIGN_OR_RETURN(matrix.a, ReadFloats(file_, halves.a->first, halves.a->second));
  ASSIGN_OR_RETURN(matrix.b, ReadFloats(file_, halves.b->first, halves.b->second));
  return matrix;
}

absl::Status AdapterReader::Read(const std::string& name, const Halves& halves) {
  const absl::string_view module = absl::StripSuffix(name, ".weight");
  absl::string_view layer = module;
  const bool inner = absl::ConsumeSuffix(&layer, kInnerFusedExperts);
  const bool fused = inner || absl::ConsumeSuffix(&layer, kFusedExperts);
  if (fused && (config_.gate_up.has_value() || config_.down.has_value())) {
    return ReadExperts(name, layer, inner, halves);
  }
  RETURN_IF_ERROR(config_.CheckModule(module));
  ASSIGN_OR_RETURN(to_[name], ReadMatrix(name, halves, config_.all, /*fused=*/false));
  return absl::OkStatus();
}

absl::Status AdapterReader::ReadExperts(const std::string& name, absl::string_view layer, bool inner,
                                        const Halves& halves) {
  const bool gate_up = inner || !config_.down.has_value();
  const std::optional<RankAndAlpha>& of = gate_up ? config_.gate_up : config_.down;
  if (!of.has_value() || (inner && !config_.down.has_value())) {
    return Wrong(halves.tensor(),
                 absl::StrCat("adapts both matrices of experts, target_parameters in ", kPeftConfigName, " names one"));
  }
  ASSIGN_OR_RETURN(const AdaptedMatrix all, ReadMatrix(name, halves, *of, /*fused=*/true));
  const int64_t num_experts = halves.a->second.shape[0] / of->rank;
  if (num_experts_ != 0 && num_experts != num_experts_) {
    return Wrong(halves.a->first, absl::StrCat("is ", halves.a->second.ShapeString(), ", with r ", of->rank, " of ",
                                               num_experts, " experts, but \"", counted_, "\" is of ", num_experts_));
  }
  num_experts_ = num_experts;
  counted_ = halves.a->first;
  const char* const projection = gate_up ? kGateUpProj : kDownProj;
  projections_[std::string(layer)].insert(projection);
  SplitExperts(layer, projection, all, num_experts, &to_);
  return absl::OkStatus();
}

absl::Status AdapterReader::CheckWhole() const {
  for (const auto& [projection, named] : {std::make_pair(absl::string_view(kGateUpProj), config_.gate_up.has_value()),
                                          std::make_pair(absl::string_view(kDownProj), config_.down.has_value())}) {
    if (!named) continue;
    const auto missing = [&, name = projection](absl::string_view where) {
      return absl::InvalidArgumentError(absl::StrCat(kWeights, ": has no adapters of experts' ", name, where,
                                                     ", which target_parameters in ", kPeftConfigName, " names"));
    };
    if (projections_.empty()) return missing("");
    for (const auto& [layer, projections] : projections_) {
      if (projections.count(std::string(projection)) == 0) return missing(absl::StrCat(" of ", layer));
    }
  }
  return absl::OkStatus();
}

uint64_t Sum(uint64_t seed, const void* from, size_t bytes) {
  return Fnv1a(absl::StrCat(seed, " ", Fnv1a(absl::string_view(static_cast<const char*>(from), bytes))));
}

std::string HashOf(const std::map<std::string, AdaptedMatrix>& matrices) {
  uint64_t sum = 0;
  for (const auto& [name, matrix] : matrices) {
    sum = Sum(sum, name.data(), name.size());
    sum = Sum(sum, &matrix.scale, sizeof(matrix.scale));
    sum = Sum(sum, matrix.a.data(), matrix.a.size() * sizeof(float));
    sum = Sum(sum, matrix.b.data(), matrix.b.size() * sizeof(float));
  }
  return absl::StrCat(absl::Hex(sum, absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const LoraAdapter>> LoraAdapter::Open(const std::string& folder, int64_t available) {
  ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(folder));
  ASSIGN_OR_RETURN(const std::string text, dir.ReadSmallFile(kPeftConfigName, kMaxConfigBytes));
  ASSIGN_OR_RETURN(const PeftConfig config, ParsePeftConfig(text));
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightsFile> file, WeightsFile::OpenSafetensors(dir, kWeights));
  RETURN_IF_ERROR(CheckSize(*file, available));
  std::unique_ptr<LoraAdapter> adapter(new LoraAdapter());
  adapter->folder_ = folder;
  ASSIGN_OR_RETURN(const auto all, FindHalves(*file));
  AdapterReader reader(*file, config, &adapter->matrices_);
  for (const auto& [name, halves] : all) RETURN_IF_ERROR(reader.Read(name, halves));
  RETURN_IF_ERROR(reader.CheckWhole());
  adapter->num_experts_ = reader.num_experts();
  adapter->hash_ = HashOf(adapter->matrices_);
  return adapter;
}

bool LoraAdapter::adapts_experts() const {
  return std::any_of(matrices_.begin(), matrices_.end(),
                     [](const auto& matrix) { return absl::StrContains(matrix.first, ".experts."); });
}

}  // namespace switchyard::checkpoint
