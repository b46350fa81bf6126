#include "workers/train/parameters/parameters.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/status_macros.h"
#include "workers/model/families/family.h"
#include "workers/model/weights/adapters.h"
#include "workers/model/weights/unused_tensors.h"
#include "workers/ops/gemm/backward/transposed_weight.h"
#include "workers/ops/sampling/random.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/parameters/parameter_rules.h"

namespace switchyard::train {
namespace {

// Two numbers of the standard normal distribution for each index (Box and Muller).
std::pair<double, double> NormalPair(uint64_t seed, uint64_t name, uint64_t index) {
  const auto word = [](uint64_t value, int half) { return static_cast<uint32_t>(value >> (32 * half)); };
  const std::array<uint32_t, 4> bits =
      ops::Philox4x32({word(index, 0), word(index, 1), word(name, 0), word(name, 1)}, {word(seed, 0), word(seed, 1)});
  const auto uniform = [&](int i) {  // (0, 1)
    return (static_cast<double>((static_cast<uint64_t>(bits[2 * i]) << 21) ^ (bits[2 * i + 1] >> 11)) + 0.5) * 0x1p-53;
  };
  const double radius = std::sqrt(-2 * std::log(uniform(0))), angle = 2 * std::numbers::pi * uniform(1);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// The values of part [first, first + count) of a tensor of that name, of standard deviation `range`.
template <class Elem>
void FillNormal(uint64_t seed, double range, absl::string_view name, int64_t first, absl::Span<Elem> to) {
  const uint64_t hash = Fnv1a(name);
  for (size_t i = 0; i < to.size(); ++i) {
    const uint64_t index = static_cast<uint64_t>(first) + i;
    const auto [even, odd] = NormalPair(seed, hash, index / 2);
    to[i] = static_cast<Elem>(range * (index % 2 == 0 ? even : odd));
  }
}

bool IsBias(const model::Param& param) { return param.name.ends_with("bias"); }

// Whether a layer adds this matrix's output to its input as it is.
bool WritesResidual(const model::LayerWeights& layer, const ops::Weight* weight) {
  const auto is_down = [&](const model::FfnWeights& ffn) { return weight == &ffn.down; };
  return weight == &layer.attention.o || (layer.dense.has_value() && is_down(*layer.dense)) ||
         (layer.moe.has_value() && (std::any_of(layer.moe->experts.begin(), layer.moe->experts.end(), is_down) ||
                                    (layer.moe->shared.has_value() && is_down(*layer.moe->shared))));
}

double RangeOf(const InitialValues& values, const model::ModelWeights& weights, const ParameterBlock& block) {
  const bool writes_residual =
      std::any_of(weights.layers.begin(), weights.layers.end(),
                  [&](const model::LayerWeights& layer) { return WritesResidual(layer, block.weight); });
  return writes_residual ? values.range / std::sqrt(2 * static_cast<double>(weights.layers.size())) : values.range;
}

void FillInitial(const Stream& stream, uint64_t seed, double range, const ParameterBlock& block) {
  VisitDType(block.master.dtype(), [&]<class Elem>() {
    for (const model::Param& part : block.parts) {
      const ElementRange all = {part.first_row * part.columns, part.rows * part.columns};
      const ElementRange here = Intersect(all, block.own());
      if (here.count == 0) continue;
      const absl::Span<Elem> to(block.StateAt(&ParameterBlock::master, here).data<Elem>(),
                                static_cast<size_t>(here.count));
      if (part.shape.size() == 1) {
        std::fill(to.begin(), to.end(), IsBias(part) ? Elem{0} : Elem{1});
        continue;
      }
      const int64_t first = part.source_row * part.columns + here.begin - all.begin;
      constexpr int64_t kGrain = 4096;
      stream.pool().ParallelFor(here.count, kGrain, [&](int64_t begin, int64_t end) {
        FillNormal(seed, range, part.name, first + begin,
                   to.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      });
    }
  });
}

// The weight or tensor of the model that a param or block is of.
template <class ParamOrBlock>
const void* ValuesOf(const ParamOrBlock& of) {
  return of.weight != nullptr ? static_cast<const void*>(of.weight) : of.tensor;
}

// None of a frozen one.
TensorView GradientOf(const ParameterBlock& block) { return block.frozen ? TensorView() : block.gradient.view(); }

}  // namespace

Parameters::Parameters(const Stream& stream, model::Model* model, absl::Span<const jobs::ParameterRule> rules,
                       const ShardPlace& place)
    : stream_(stream),
      model_(model),
      rules_(rules.begin(), rules.end()),
      adapted_(model::HasAdapters(model->weights())),
      place_(adapted_ ? ShardPlace() : place) {}

absl::StatusOr<std::unique_ptr<Parameters>> Parameters::Create(const Stream& stream, model::Model* model,
                                                               const OpenStateFileFn& open_offload,
                                                               absl::Span<const jobs::ParameterRule> rules,
                                                               const ShardPlace& place) {
  if (!stream.device().is_cpu()) return absl::UnimplementedError("training on a device");
  if (model->experts() != nullptr) return absl::UnimplementedError("training experts that a store has");
  std::unique_ptr<Parameters> parameters(new Parameters(stream, model, rules, place));
  parameters->blocks_ = parameters->AllBlocks();
  if (open_offload && !parameters->adapted()) RETURN_IF_ERROR(parameters->Offload(open_offload));
  for (ParameterBlock& block : parameters->blocks_) RETURN_IF_ERROR(parameters->Allocate(&block));
  parameters->LinkGradients();
  return parameters;
}

// Rows of one weight or tensor follow each other in the table.
std::vector<ParameterBlock> Parameters::BlocksOf(const std::vector<model::Param>& params) const {
  std::vector<ParameterBlock> blocks;
  absl::flat_hash_map<const void*, size_t> index;
  for (const model::Param& param : params) {
    const auto [same, added] = index.try_emplace(ValuesOf(param), blocks.size());
    if (!added) {
      blocks[same->second].parts.push_back(param);
      continue;
    }
    ParameterBlock& block = blocks.emplace_back();
    block.parts = {param};
    block.shard = param.shard;
    block.layer = param.layer;
    block.expert = param.expert;
    block.weight = param.weight;
    block.tensor = param.tensor;
    block.decayed = param.shape.size() > 1;
    block.by_gradient = !param.router_bias;
  }
  for (ParameterBlock& block : blocks) ApplyRules(&block);
  return blocks;
}

std::vector<ParameterBlock> Parameters::AllBlocks() const {
  const model::ModelFamily* const family = model::FindFamily(model_->config().model_type);
  SY_CHECK(family != nullptr);
  model::ModelWeights* const weights = model_->mutable_weights();
  std::vector<model::Param> params = model::ListParams(model_->config(), *family, weights);
  const std::vector<model::Param> adapters = model::ListAdapterParams(weights);
  params.insert(params.end(), adapters.begin(), adapters.end());
  std::vector<ParameterBlock> blocks = BlocksOf(params);
  ShardDense(&blocks);
  return blocks;
}

void Parameters::ApplyRules(ParameterBlock* block) const {
  const model::Param& first = block->parts.front();
  block->base = adapted_ && !model::IsAdapterA(first) && !model::IsAdapterB(first);
  for (const model::Param& part : block->parts) {
    const jobs::ParameterRule* const rule = RuleFor(rules_, part.name);
    PartRule& to = block->rules.emplace_back();
    if (rule != nullptr) to = {rule->frozen, rule->rate.value_or(1), rule->weight_decay};
    if (block->base) to = {.frozen = true};
  }
  block->frozen =
      std::all_of(block->rules.begin(), block->rules.end(), [](const PartRule& rule) { return rule.frozen; });
}

std::vector<TrainedPart> TrainedPartsOf(const ParameterBlock& block) {
  std::vector<TrainedPart> trained;
  if (block.frozen) return trained;
  if (block.uniform()) return {{block.rules[0], {0, block.size()}}};
  for (size_t i = 0; i < block.parts.size(); ++i) {
    const model::Param& part = block.parts[i];
    if (block.rules[i].frozen) continue;
    trained.push_back({block.rules[i], {part.first_row * part.columns, part.rows * part.columns}});
  }
  return trained;
}

Shape ParameterBlock::StateShape() const {
  return weight != nullptr ? Shape{weight->n(), weight->k()} : Shape{tensor->view().NumElements(), 1};
}

absl::Status Parameters::AllocateState(ParameterBlock* block) const {
  const Shape shape = block->is_sharded() ? Shape{block->own().count, 1} : block->StateShape();
  for (const auto state : StateOf(*block)) {
    ASSIGN_OR_RETURN(block->*state, Tensor::Allocate(AccDType(model_->dtype()), shape, stream_.device()));
    RETURN_IF_ERROR(FillZero(stream_, block->*state));
  }
  return absl::OkStatus();
}

absl::Status Parameters::Allocate(ParameterBlock* block) const {
  const Shape shape = block->StateShape();
  if (!block->frozen) {
    ASSIGN_OR_RETURN(block->gradient, Tensor::Allocate(AccDType(model_->dtype()), shape, stream_.device()));
    RETURN_IF_ERROR(FillZero(stream_, block->gradient));
  }
  if (block->offloaded == nullptr) RETURN_IF_ERROR(AllocateState(block));
  if (block->weight == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(block->transposed,
                   ops::Weight::Allocate({.n = shape[1], .k = shape[0], .dtype = model_->dtype()}, stream_.device()));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StateOffload>> Parameters::OffloadLayers(
    const std::vector<std::vector<ParameterBlock*>>& layers, const OpenStateFileFn& open) const {
  std::vector<std::vector<Shape>> shapes;
  for (const std::vector<ParameterBlock*>& layer : layers) {
    std::vector<Shape>& of_layer = shapes.emplace_back();
    for (const ParameterBlock* block : layer) of_layer.push_back(block->StateShape());
  }
  ASSIGN_OR_RETURN(std::unique_ptr<StateOffload> offload,
                   StateOffload::Create(shapes, AccDType(model_->dtype()), open));
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t i = 0; i < layers[l].size(); ++i) {
      layers[l][i]->offloaded = &offload->file();
      layers[l][i]->offloaded_at = offload->place(l, i);
    }
  }
  return offload;
}

absl::Status Parameters::Offload(const OpenStateFileFn& open) {
  std::vector<std::vector<ParameterBlock*>> layers;
  int32_t layer = -1;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (blocks_[b].shard != model::Shard::kExpert) continue;
    if (blocks_[b].layer != std::exchange(layer, blocks_[b].layer)) {
      layers.emplace_back();
      offloaded_.emplace_back();
    }
    layers.back().push_back(&blocks_[b]);
    offloaded_.back().push_back(b);
  }
  if (layers.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(offload_, OffloadLayers(layers, open));
  return absl::OkStatus();
}

absl::Status Parameters::ForEachGroup(StateAccess access,
                                      absl::FunctionRef<absl::Status(absl::Span<ParameterBlock* const>)> use) {
  std::vector<ParameterBlock*> group;
  for (ParameterBlock& block : blocks_) {
    if (block.offloaded == nullptr && !block.base) group.push_back(&block);
  }
  RETURN_IF_ERROR(use(group));
  if (offload_ == nullptr) return absl::OkStatus();
  return offload_->ForEachLayer(access, [&](size_t layer, absl::Span<StateOffload::Tensors> tensors) {
    std::vector<ParameterBlock*> blocks;
    for (const size_t b : offloaded_[layer]) blocks.push_back(&blocks_[b]);
    const ScopedState given(blocks, tensors);
    return use(blocks);
  });
}

ops::TrainedMatrix Parameters::MatrixOf(const ops::Weight& weight) const {
  const ParameterBlock& block = blocks_[index_.at(&weight)];
  return {.transposed = &block.transposed, .gradient = GradientOf(block)};
}

// A vector, or a table of rows.
TensorView Parameters::VectorOf(const Tensor& tensor) const {
  if (tensor.view().raw() == nullptr) return TensorView();
  const ParameterBlock& block = blocks_[index_.at(&tensor)];
  return block.frozen ? TensorView() : block.gradient.view().Reshape(tensor.shape());
}

void Parameters::LinkGradients() {
  index_.clear();
  for (size_t b = 0; b < blocks_.size(); ++b) index_[ValuesOf(blocks_[b])] = b;
  const model::ModelWeights& weights = model_->weights();
  const auto adapter = [&](const std::optional<model::AdapterWeights>& from) {
    if (!from.has_value()) return ops::TrainedAdapter();
    return ops::TrainedAdapter{.a = MatrixOf(from->a), .b = MatrixOf(from->b)};
  };
  const auto ffn = [&](const model::FfnWeights& from) {
    return ops::FfnGradients{.gate_up = MatrixOf(from.gate_up),
                             .down = MatrixOf(from.down),
                             .up_bias = VectorOf(from.up_bias),
                             .down_bias = VectorOf(from.down_bias),
                             .gate_up_adapter = adapter(from.gate_up_adapter),
                             .down_adapter = adapter(from.down_adapter)};
  };
  gradients_.lm_head = MatrixOf(weights.lm_head);
  gradients_.embedding = model_->config().tie_embeddings ? gradients_.lm_head.gradient : VectorOf(weights.embedding);
  gradients_.positions = VectorOf(weights.positions);
  gradients_.final_norm = VectorOf(weights.final_norm);
  gradients_.final_norm_bias = VectorOf(weights.final_norm_bias);
  for (const model::LayerWeights& layer : weights.layers) {
    const model::AttentionWeights& a = layer.attention;
    model::LayerGradients& to = gradients_.layers.emplace_back();
    to.attention = {.norm = VectorOf(a.norm),
                    .norm_bias = VectorOf(a.norm_bias),
                    .qkv = MatrixOf(a.qkv),
                    .qkv_bias = VectorOf(a.qkv_bias),
                    .q_norm = VectorOf(a.q_norm),
                    .k_norm = VectorOf(a.k_norm),
                    .o = MatrixOf(a.o),
                    .o_bias = VectorOf(a.o_bias)};
    const auto link = [&](const std::vector<model::AdapterWeights>& all, std::vector<model::AdapterGradients>* linked) {
      for (const auto& each : all) linked->push_back({.a = MatrixOf(each.a), .b = MatrixOf(each.b)});
    };
    link(a.qkv_adapters, &to.attention.qkv_adapters);
    link(a.o_adapters, &to.attention.o_adapters);
    to.ffn_norm = VectorOf(layer.ffn_norm);
    to.ffn_norm_bias = VectorOf(layer.ffn_norm_bias);
    if (layer.dense.has_value()) to.dense = ffn(*layer.dense);
    if (!layer.moe.has_value()) continue;
    to.moe.emplace().router = MatrixOf(layer.moe->router);
    for (const model::FfnWeights& expert : layer.moe->experts) to.moe->experts.push_back(ffn(expert));
    if (!layer.moe->shared.has_value()) continue;
    to.moe->shared = ffn(*layer.moe->shared);
    to.moe->shared_gate = MatrixOf(layer.moe->shared_gate);
  }
}

absl::Status Parameters::Initialise(const InitialValues& values, const checkpoint::OnRead& on_bytes) {
  return ForEachGroup(StateAccess::kUpdate, [&](absl::Span<ParameterBlock* const> group) -> absl::Status {
    for (const ParameterBlock* block : group) {
      FillInitial(stream_, values.seed, RangeOf(values, model_->weights(), *block), *block);
      if (on_bytes) RETURN_IF_ERROR(on_bytes(block->master.bytes()));
    }
    return absl::OkStatus();
  });
}

absl::Status Parameters::Load(const checkpoint::Checkpoint& checkpoint, int num_threads,
                              const std::function<bool(int64_t, int64_t)>& progress) {
  ASSIGN_OR_RETURN(std::vector<model::Param> params,
                   model::BuildParams(model_->config(), *model::FindFamily(model_->config().model_type), checkpoint,
                                      model_->mutable_weights()));
  RETURN_IF_ERROR(model::CheckAllUsed(checkpoint, model_->config(), params));
  const auto options = [&](DType dtype) {
    model::LoadOptions options;
    options.dtype = dtype;
    options.num_threads = num_threads;
    if (progress) options.progress = progress;
    return options;
  };
  if (adapted_) return LoadBase(checkpoint, params, options(model_->dtype()));
  const DType wide = AccDType(model_->dtype());
  RETURN_IF_ERROR(LoadSharded(checkpoint, params, [&] { return options(wide); }));
  return ForEachGroup(StateAccess::kUpdate, [&](absl::Span<ParameterBlock* const> group) {
    absl::flat_hash_map<const void*, Tensor*> masters;
    for (ParameterBlock* block : group) {
      if (!block->is_sharded()) masters[ValuesOf(*block)] = &block->master;
    }
    std::vector<model::Param> wanted;
    for (const model::Param& param : params) {
      const auto master = masters.find(ValuesOf(param));
      if (master == masters.end()) continue;
      wanted.push_back(param);
      wanted.back().weight = nullptr;
      wanted.back().tensor = master->second;
    }
    return model::LoadParams(checkpoint, wanted, options(wide));
  });
}

absl::Status Parameters::Publish(const GatherCall& ranks) {
  return ForEachGroup(StateAccess::kRead, [&](absl::Span<ParameterBlock* const> group) {
    return PublishGroup(group, ranks, [](ParameterBlock&) { return absl::OkStatus(); });
  });
}

absl::Status Parameters::Update(absl::FunctionRef<absl::Status(ParameterBlock&)> change, const GatherCall& ranks) {
  return ForEachGroup(StateAccess::kUpdate, [&](absl::Span<ParameterBlock* const> group) {
    std::vector<ParameterBlock*> trained;
    for (ParameterBlock* block : group) {
      if (!block->frozen) trained.push_back(block);
    }
    return PublishGroup(trained, ranks, change);
  });
}

absl::Status Parameters::PublishGroup(absl::Span<ParameterBlock* const> group, const GatherCall& ranks,
                                      absl::FunctionRef<absl::Status(ParameterBlock&)> before) {
  WeightGather gather(stream_, ranks, place_.gather_bytes,
                      [this](ParameterBlock* block, const TensorView& rows) { return Publish(block, rows); });
  for (ParameterBlock* block : group) {
    RETURN_IF_ERROR(before(*block));
    RETURN_IF_ERROR(block->is_sharded() ? gather.Add(block) : Publish(block));
  }
  return gather.Finish();
}

absl::Status Parameters::Publish(ParameterBlock* block, const TensorView& rows) const {
  if (block->weight == nullptr) {
    return RoundRows(stream_, rows.Reshape({1, block->size()}), block->tensor->view().Reshape({1, block->size()}));
  }
  RETURN_IF_ERROR(ops::PackAgain(stream_, rows, block->weight));
  return ops::PackTransposed(stream_, rows, &block->transposed);
}

absl::Status Parameters::ZeroGradients() {
  for (ParameterBlock& block : blocks_) {
    if (!block.frozen) RETURN_IF_ERROR(FillZero(stream_, block.gradient));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
