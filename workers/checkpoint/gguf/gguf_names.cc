#include "workers/checkpoint/gguf/gguf_names.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/gguf/gguf_architectures.h"

namespace switchyard::checkpoint {
namespace {

enum class Part {
  kWhole,
  kQueries,  // rows of heads
  kKeys,
  kRow,  // [1, H], which some converters write as [H]
  kRouter,
  kRouterBias,
  kExpertGate,  // [E, F, H], or [F, H] of the expert that the name says
  kExpertUp,
  kExpertDown,
  kExpertGateUp,    // [E, 2F, H], gate rows first
  kExpertGateBias,  // [E, F]
  kExpertUpBias,
  kExpertDownBias,  // [E, H]
};

struct NameRow {
  const char* gguf;  // behind "blk.{i}."
  const char* hf;    // behind "model.layers.{i}."; null: the architecture says
  Part part = Part::kWhole;
};

constexpr NameRow kBlockNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight", Part::kQueries},
    {"attn_q.bias", "self_attn.q_proj.bias", Part::kQueries},
    {"attn_k.weight", "self_attn.k_proj.weight", Part::kKeys},
    {"attn_k.bias", "self_attn.k_proj.bias", Part::kKeys},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},  // gpt-oss's, which has no ffn_norm
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", nullptr, Part::kRouter},
    {"ffn_gate_inp.bias", nullptr, Part::kRouterBias},
    {"ffn_gate_exps.weight", nullptr, Part::kExpertGate},
    {"ffn_up_exps.weight", nullptr, Part::kExpertUp},
    {"ffn_down_exps.weight", nullptr, Part::kExpertDown},
    {"ffn_gate_up_exps.weight", nullptr, Part::kExpertGateUp},
    {"ffn_gate_exps.bias", nullptr, Part::kExpertGateBias},
    {"ffn_up_exps.bias", nullptr, Part::kExpertUpBias},
    {"ffn_down_exps.bias", nullptr, Part::kExpertDownBias},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", Part::kRow},
};
// One tensor for each expert, "ffn_gate.3.weight", in files of early 2024.
constexpr std::pair<const char*, Part> kOldExperts[] = {
    {"ffn_gate.", Part::kExpertGate}, {"ffn_up.", Part::kExpertUp}, {"ffn_down.", Part::kExpertDown}};
constexpr std::pair<const char*, const char*> kOtherNames[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                                                               {"output_norm.weight", "model.norm.weight"},
                                                               {"output.weight", "lm_head.weight"}};
constexpr int64_t kMaxModelTensors = 1'000'000;  // each expert's are tensors of their own

// "blk.12.REST" as 12 and REST.
struct BlockName {
  int64_t block;
  absl::string_view rest;
};
std::optional<BlockName> ParseBlockName(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "blk.")) return std::nullopt;
  const size_t dot = name.find('.');
  int64_t block = 0;
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), &block) ||
      absl::StrCat(block) != name.substr(0, dot)) {
    return std::nullopt;
  }
  return BlockName{block, name.substr(dot + 1)};
}

// Collects the tensors of one checkpoint.
class NameLister {
 public:
  NameLister(const GgufArchitecture& architecture, const GgufShape& shape)
      : architecture_(architecture), shape_(shape) {}

  absl::Status Add(const GgufFile& file, const GgufTensor& tensor);
  std::vector<GgufModelTensor> Take() { return std::move(found_); }

 private:
  template <class... Why>
  static absl::Status Refuse(const GgufTensor& tensor, const Why&... why) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", Excerpt(tensor.name), "\": ", why...));
  }
  absl::Status AddOfBlock(const GgufFile& file, const GgufTensor& tensor, const BlockName& name);
  absl::Status AddHeads(GgufModelTensor whole, const GgufTensor& tensor, int64_t num_heads);
  absl::Status AddExperts(const GgufModelTensor& whole, const GgufTensor& tensor, int64_t block, Part part);
  std::string ExpertName(Part part, int64_t block, int64_t expert) const;
  static std::string Filled(const char* pattern, int64_t block, int64_t expert) {
    return absl::StrReplaceAll(pattern, {{"{i}", absl::StrCat(block)}, {"{e}", absl::StrCat(expert)}});
  }

  static std::string BiasOf(absl::string_view weight) {
    return absl::StrCat(absl::StripSuffix(weight, ".weight"), ".bias");
  }

  const GgufArchitecture& architecture_;
  const GgufShape& shape_;
  std::vector<GgufModelTensor> found_;
};

std::string NameLister::ExpertName(Part part, int64_t block, int64_t expert) const {
  const bool gate = part == Part::kExpertGate || part == Part::kExpertGateBias;
  const bool up = part == Part::kExpertUp || part == Part::kExpertUpBias;
  const std::string weight = Filled(gate ? architecture_.expert_gate
                                    : up ? architecture_.expert_up
                                         : architecture_.expert_down,
                                    block, expert);
  return part >= Part::kExpertGateBias ? BiasOf(weight) : weight;
}

absl::Status NameLister::Add(const GgufFile& file, const GgufTensor& tensor) {
  if (absl::StartsWith(tensor.name, "rope_")) return absl::OkStatus();  // gguf_config.h
  for (const auto& [gguf, hf] : kOtherNames) {
    if (tensor.name != gguf) continue;
    found_.push_back({hf, tensor.shape, &file, tensor.format, tensor.begin, tensor.bytes});
    return absl::OkStatus();
  }
  const std::optional<BlockName> name = ParseBlockName(tensor.name);
  if (!name.has_value()) return Refuse(tensor, "architecture \"", architecture_.name, "\" has no such tensor");
  if (name->block >= 0 && name->block < shape_.num_blocks) return AddOfBlock(file, tensor, *name);
  return Refuse(tensor, "block ", name->block, ", but there are ", shape_.num_blocks);
}

absl::Status NameLister::AddOfBlock(const GgufFile& file, const GgufTensor& tensor, const BlockName& name) {
  GgufModelTensor whole = {"", tensor.shape, &file, tensor.format, tensor.begin, tensor.bytes};
  for (const NameRow& row : kBlockNames) {
    if (name.rest != row.gguf) continue;
    if (row.part >= Part::kExpertGate) return AddExperts(whole, tensor, name.block, row.part);
    if (row.hf != nullptr) {
      whole.name = absl::StrCat("model.layers.", name.block, ".", row.hf);
    } else {
      whole.name = Filled(architecture_.router, name.block, 0);
      if (row.part == Part::kRouterBias) whole.name = BiasOf(whole.name);
    }
    if (row.part == Part::kQueries) return AddHeads(std::move(whole), tensor, shape_.num_heads);
    if (row.part == Part::kKeys) return AddHeads(std::move(whole), tensor, shape_.num_kv_heads);
    if (row.part == Part::kRow && whole.shape.size() == 1) whole.shape.insert(whole.shape.begin(), 1);
    found_.push_back(std::move(whole));
    return absl::OkStatus();
  }
  for (const auto& [prefix, part] : kOldExperts) {
    absl::string_view rest = name.rest;
    int64_t expert = 0;
    if (!absl::ConsumePrefix(&rest, prefix) || !absl::ConsumeSuffix(&rest, ".weight") ||
        !absl::SimpleAtoi(rest, &expert) || absl::StrCat(expert) != rest) {
      continue;
    }
    if (expert < 0 || expert >= shape_.num_experts) {
      return Refuse(tensor, "expert ", expert, ", but there are ", shape_.num_experts);
    }
    whole.name = ExpertName(part, name.block, expert);
    found_.push_back(std::move(whole));
    return absl::OkStatus();
  }
  return Refuse(tensor, "architecture \"", architecture_.name, "\" has no such tensor");
}

absl::Status NameLister::AddHeads(GgufModelTensor whole, const GgufTensor& tensor, int64_t num_heads) {
  const int64_t rows = tensor.shape.front();
  if (rows != num_heads * shape_.head_dim) {
    return Refuse(tensor, tensor.ShapeString(), ": expected ", num_heads, " heads of ", shape_.head_dim,
                  " rows, found ", rows, " rows");
  }
  if (architecture_.interleaved_rope) {
    if (shape_.head_dim % 2 != 0) return Refuse(tensor, "heads of ", shape_.head_dim, " rows, expected an even number");
    whole.interleaved_head = shape_.head_dim;
    if (tensor.shape.size() == 1 && tensor.format->elements != 1) {
      return Refuse(tensor, "a bias of type ", tensor.format->name, ", expected F32, F16 or BF16");
    }
  }
  found_.push_back(std::move(whole));
  return absl::OkStatus();
}

absl::Status NameLister::AddExperts(const GgufModelTensor& whole, const GgufTensor& tensor, int64_t block, Part part) {
  const size_t rank = part >= Part::kExpertGateBias ? 2 : 3;
  if (tensor.shape.size() != rank || tensor.shape[0] != shape_.num_experts) {
    return Refuse(tensor, tensor.ShapeString(), ": expected ", rank, " dimensions, the first of ", shape_.num_experts,
                  " experts");
  }
  const bool both = part == Part::kExpertGateUp;
  if (both && tensor.shape[1] % 2 != 0) {
    return Refuse(tensor, tensor.ShapeString(), ": expected gate and up rows, an even number");
  }
  if (static_cast<int64_t>(found_.size()) > kMaxModelTensors) {
    return Refuse(tensor, "the model has more than ", kMaxModelTensors, " tensors");
  }
  const int64_t parts = both ? 2 : 1;
  GgufModelTensor piece = whole;
  piece.shape.erase(piece.shape.begin());
  piece.shape.front() /= parts;
  piece.bytes = tensor.bytes / shape_.num_experts / parts;
  for (int64_t e = 0; e < shape_.num_experts; ++e) {
    for (int64_t p = 0; p < parts; ++p, piece.begin += piece.bytes) {
      const Part each = both ? (p == 0 ? Part::kExpertGate : Part::kExpertUp) : part;
      piece.name = ExpertName(each, block, e);
      found_.push_back(piece);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<GgufModelTensor>> ListGgufModelTensors(const GgufCheckpoint& checkpoint) {
  const std::string& first = checkpoint.files().front()->name();
  const absl::StatusOr<const GgufArchitecture*> architecture = FindGgufArchitecture(checkpoint.metadata());
  if (!architecture.ok()) return InFile(first, architecture.status());
  const absl::StatusOr<GgufShape> shape = ReadGgufShape(**architecture, checkpoint.metadata());
  if (!shape.ok()) return InFile(first, shape.status());
  NameLister lister(**architecture, *shape);
  for (const std::unique_ptr<GgufFile>& file : checkpoint.files()) {
    for (const GgufTensor& tensor : file->tensors()) {
      if (absl::Status status = lister.Add(*file, tensor); !status.ok()) return InFile(file->name(), status);
    }
  }
  std::vector<GgufModelTensor> tensors = lister.Take();
  std::sort(tensors.begin(), tensors.end(),
            [](const GgufModelTensor& a, const GgufModelTensor& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice == tensors.end()) return tensors;
  return InFile(twice->file->name(),
                absl::InvalidArgumentError(absl::StrCat("two tensors are \"", Excerpt(twice->name), "\"")));
}

}  // namespace switchyard::checkpoint
