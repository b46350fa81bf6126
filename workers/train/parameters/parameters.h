// The parameters of a model in training: for each its master value, its gradient and AdamW's two moments, all in
// AccDType (fp32; fp64 for an fp64 model), and the transposed weights that backward reads.
//
// A block is one packed weight of the model (q, k and v are one, gate and up of an expert are one) or one vector; its
// parts name the checkpoint tensors of its rows.  Masters are trained; Publish rounds them into the model.  An expert's
// blocks are on the ranks that hold it, which may change between steps (AllocateExperts, AdoptExperts; repack.h moves
// values), all others on every rank; if dense state is sharded (dense_shards.h), of their masters and moments each
// rank has a part.  A frozen block (parameter_rules.h) has a master alone.  In a model with adapters (adapters.h) they
// alone have masters: the base's blocks have weights and their transposes, as loaded.
// Thread-compatible.  CPU only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/jobs/job_spec.h"
#include "workers/checkpoint/files/file_sums.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/model/backward/model_gradients.h"
#include "workers/model/forward/model.h"
#include "workers/model/weights/loader.h"
#include "workers/model/weights/params.h"
#include "workers/ops/gemm/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"
#include "workers/train/parameters/dense_shards.h"
#include "workers/train/parameters/state_file.h"
#include "workers/train/parameters/state_offload.h"
#include "workers/train/parameters/weight_gather.h"

namespace switchyard::train {

// What a rule says of a part of a block.
struct PartRule {
  bool frozen = false;
  double rate = 1;                          // factor of the learning rate
  std::optional<double> weight_decay = {};  // unset: the optimizer's, of matrices
  bool operator==(const PartRule& other) const = default;
};

struct ParameterBlock {
  std::vector<model::Param> parts;  // in the order of their rows
  std::vector<PartRule> rules;      // of each of them
  bool frozen = false;              // all of them are: there are no gradient and no moments
  bool base = false;                // frozen beneath adapters: there is no master either
  model::Shard shard = model::Shard::kReplicated;
  int32_t layer = -1, expert = -1;  // of an expert: its numbers in the model
  int32_t replica = 0;              // of an expert: the number of this replica
  bool decayed = false;             // weight decay: of matrices alone
  bool by_gradient = true;          // false: a router's bias, which no gradient trains (router_losses.h)
  ops::Weight* weight = nullptr;    // of the model; exactly one of the two
  Tensor* tensor = nullptr;
  ops::Weight transposed;     // [k, n], of weights
  Tensor master, gradient;    // [rows, columns] AccDType; of vectors [n, 1]
  Tensor mean, mean_squares;  // AdamW's first and second moment, likewise
  // If it is sharded: [R + 1] elements [borders[r], borders[r + 1]) are on rank r.  Master and moments then are own()
  // alone, [own().count, 1]; all of the gradient is here, and after its sum over the ranks own() of it is the sum.
  std::vector<int64_t> borders = {};
  int32_t place = 0;   // this rank among those
  int32_t writer = 0;  // the rank that writes it into checkpoints, if it is not an expert's
  // If an expert is offloaded: the file with master and moments, one after the other; the tensors are then empty except
  // within Parameters::ForEachGroup.
  const StateFile* offloaded = nullptr;
  int64_t offloaded_at = 0;

  Shape StateShape() const;  // [rows, columns]
  int64_t size() const { return StateShape().NumElements(); }
  bool is_sharded() const { return !borders.empty(); }
  // The elements of master and moments on this rank.
  ElementRange own() const {
    if (!is_sharded()) return {0, size()};
    return {borders[place], borders[place + 1] - borders[place]};
  }
  // [n] some elements of the gradient.
  TensorView GradientAt(const ElementRange& range) const {
    return gradient.view().Reshape({size()}).Rows(range.begin, range.count);
  }
  // [n] some of own() of master or a moment.
  TensorView StateAt(Tensor ParameterBlock::*state, const ElementRange& range) const {
    return (this->*state).view().Reshape({own().count}).Rows(range.begin - own().begin, range.count);
  }
  // Whether one rule holds for all of it.
  bool uniform() const { return std::equal(rules.begin() + 1, rules.end(), rules.begin()); }
  int64_t bytes() const {  // beside the model's
    return master.bytes() + gradient.bytes() + mean.bytes() + mean_squares.bytes() + transposed.bytes();
  }
};

// The optimizer's state of a block, in the order of files.
inline constexpr Tensor ParameterBlock::*kState[] = {&ParameterBlock::master, &ParameterBlock::mean,
                                                     &ParameterBlock::mean_squares};
// Those that a block has in memory and in checkpoints.  (A file of offloaded state has room for all.)
inline absl::Span<Tensor ParameterBlock::*const> StateOf(const ParameterBlock& block) {
  const size_t count = block.base ? 0 : block.frozen ? 1 : std::size(kState);
  return absl::MakeConstSpan(kState).first(count);
}

// Elements of a block that are trained, by one rule; of a frozen block there are none.  On all ranks, if it is
// sharded.
struct TrainedPart {
  PartRule rule;
  ElementRange elements;
};
std::vector<TrainedPart> TrainedPartsOf(const ParameterBlock& block);

// Experts that a rank is about to get: weights and blocks with undefined values.
struct NewExperts {
  std::vector<int32_t> residents = {};                       // by slot, of every layer that has experts
  std::vector<int32_t> ids = {};                             // those of them that the rank does not have yet
  std::vector<std::vector<model::FfnWeights>> weights = {};  // [MoE layers][ids]
  std::vector<ParameterBlock> blocks = {};                   // of those, by layer, then by expert
  // If masters and moments are in a file, or will be: blocks of the experts that stay, without their tensors.
  std::vector<ParameterBlock> staying = {};  // likewise layer by layer
  // Of all residents; a layer's blocks are those of `blocks`, then those of `staying`.  Null: all will be in memory.
  std::unique_ptr<StateOffload> offload = nullptr;
};

// The numbers that decide how much memory NewExperts take.
struct NewExpertsShape {
  int64_t added = 0, staying = 0;  // experts a layer
  bool offload = false;            // masters and moments of both go into a file
};

// Matrices are drawn from a normal distribution; vectors of norms begin at 1, biases at 0.
struct InitialValues {
  uint64_t seed = 0;
  // Standard deviation (HF's initializer_range).  Matrices whose output is added to a layer's input have range / sqrt(2
  // layers), so that the sum does not grow with depth (GPT-2, Radford et al. 2019, 2.3).
  double range = 0.02;
};

class Parameters {
 public:
  // Zeroes moments and gradients; masters are undefined until Initialise or Load.  model: borrowed.  open_offload:
  // makes the file for masters and moments of experts; none: they stay in memory, and with adapters there are none.
  // rules: the first one that fits a part holds for it (parameter_rules.h).  place: this rank among those that dense
  // state is sharded over; not with adapters, whose state stays on every rank.  Errors: open_offload's; Unimplemented
  // on a device or where a store has the experts; ResourceExhausted with needed and available bytes.
  static absl::StatusOr<std::unique_ptr<Parameters>> Create(const Stream& stream, model::Model* model,
                                                            const OpenStateFileFn& open_offload = nullptr,
                                                            absl::Span<const jobs::ParameterRule> rules = {},
                                                            const ShardPlace& place = {});

  // Masters from a generator that is keyed by (seed, name, element): the same values on any number of ranks.
  // on_bytes: called now and then with the bytes of drawn values; an error ends the call.
  absl::Status Initialise(const InitialValues& values, const checkpoint::OnRead& on_bytes = nullptr);
  // Draws the masters of adapters as PEFT does: A uniform in ±1 / sqrt(k), B zero; from the same generator.
  absl::Status InitialiseAdapters(uint64_t seed);
  // Loads masters, or with adapters the base's weights, from a checkpoint of any dtype.  progress: as in LoadOptions.
  // Errors: the loader's, CheckAllUsed's.
  absl::Status Load(const checkpoint::Checkpoint& checkpoint, int num_threads,
                    const std::function<bool(int64_t bytes_done, int64_t bytes_total)>& progress = nullptr);
  // Sets the model's weights, and their transposes, to the masters, rounded to the model's dtype.  Collective if dense
  // state is sharded: `ranks` then are those that it is sharded over, in class all_reduce; an error ends their group.
  // Else GatherCall() will do.
  absl::Status Publish(const GatherCall& ranks);
  // The same for each block that is not frozen, after `change` has changed its master and moments.
  absl::Status Update(absl::FunctionRef<absl::Status(ParameterBlock&)> change, const GatherCall& ranks);
  // Valid until AdoptExperts.
  train::ShardedGradients ShardedGradients() const;
  // Whether dense state is sharded.
  bool shards_dense() const { return place_.world > 1; }
  absl::Status ZeroGradients();
  // Calls `use` with the blocks in memory, then with the offloaded blocks of each layer (state_offload.h).  All access
  // to masters and moments goes through this.  Errors: use's, which ends the call, and the file's.
  absl::Status ForEachGroup(StateAccess access, absl::FunctionRef<absl::Status(absl::Span<ParameterBlock* const>)> use);
  const StateOffload* offload() const { return offload_.get(); }

  // Fills a layer's new experts, `to`; `from` are the present ones.  Masters and moments of both are in memory.
  using BringLayerFn = absl::FunctionRef<absl::Status(int32_t layer, absl::Span<ParameterBlock* const> from,
                                                      absl::Span<ParameterBlock* const> to)>;
  // Makes experts with undefined masters and moments; open_offload: makes a file for those of all residents; none: they
  // will be in memory.  Neither this nor the next two calls change the parameters.  Errors: ResourceExhausted,
  // open_offload's.
  absl::StatusOr<NewExperts> AllocateExperts(std::vector<int32_t> residents,
                                             const OpenStateFileFn& open_offload = nullptr) const;
  // Bytes of memory that AllocateExperts will allocate.
  int64_t BytesOfExperts(const NewExpertsShape& shape) const;
  // Moves masters and moments to their new places, layer by layer, at most two layers of a file in memory; `bring`
  // fills those of experts that are new to this rank.  Publishes their weights.  Ends with an error of bring's or of
  // the files.
  absl::Status BringExperts(NewExperts* experts, BringLayerFn bring);
  // Replaces this rank's experts by the residents; other experts and their file are destroyed.  Blocks and gradients()
  // have moved: views of them are invalid.
  void AdoptExperts(NewExperts experts);
  void SetReplica(int32_t replica);

  std::vector<ParameterBlock>& blocks() { return blocks_; }
  const std::vector<ParameterBlock>& blocks() const { return blocks_; }
  const model::ModelGradients& gradients() const { return gradients_; }
  const model::Model& model() const { return *model_; }
  bool adapted() const { return adapted_; }  // the model has adapters, which alone are trained

 private:
  Parameters(const Stream& stream, model::Model* model, absl::Span<const jobs::ParameterRule> rules,
             const ShardPlace& place);
  // Blocks without memory, in the order of the table.
  std::vector<ParameterBlock> BlocksOf(const std::vector<model::Param>& params) const;
  std::vector<ParameterBlock> AllBlocks() const;
  // Sets a block's rules and what follows from them.
  void ApplyRules(ParameterBlock* block) const;
  absl::Status LoadBase(const checkpoint::Checkpoint& checkpoint, const std::vector<model::Param>& params,
                        model::LoadOptions options);
  absl::Status Allocate(ParameterBlock* block) const;
  absl::Status AllocateState(ParameterBlock* block) const;
  absl::Status Offload(const OpenStateFileFn& open);
  // Makes a file for masters and moments of those layers' blocks, and sets the blocks' places in it.
  absl::StatusOr<std::unique_ptr<StateOffload>> OffloadLayers(const std::vector<std::vector<ParameterBlock*>>& layers,
                                                              const OpenStateFileFn& open) const;
  std::vector<ParameterBlock> StayingBlocks(absl::Span<const int32_t> residents) const;
  absl::Status BringLayer(NewExperts* experts, int32_t layer, size_t moe_layer, BringLayerFn bring);
  // Sets which rank has which elements of the dense blocks.
  void ShardDense(std::vector<ParameterBlock>* blocks) const;
  absl::Status LoadSharded(const checkpoint::Checkpoint& checkpoint, const std::vector<model::Param>& params,
                           absl::FunctionRef<model::LoadOptions()> options);
  // Publishes each block after `before` of it.
  absl::Status PublishGroup(absl::Span<ParameterBlock* const> group, const GatherCall& ranks,
                            absl::FunctionRef<absl::Status(ParameterBlock&)> before);
  absl::Status Publish(ParameterBlock* block) const { return Publish(block, block->master); }
  // rows: all of the block's values, in any floating dtype.
  absl::Status Publish(ParameterBlock* block, const TensorView& rows) const;
  void LinkGradients();
  ops::TrainedMatrix MatrixOf(const ops::Weight& weight) const;
  TensorView VectorOf(const Tensor& tensor) const;

  const Stream stream_;
  model::Model* const model_;
  const std::vector<jobs::ParameterRule> rules_;
  const bool adapted_;
  const ShardPlace place_;
  std::vector<ParameterBlock> blocks_;
  absl::flat_hash_map<const void*, size_t> index_;  // of each block, by its weight or tensor of the model
  model::ModelGradients gradients_;
  std::unique_ptr<StateOffload> offload_;
  std::vector<std::vector<size_t>> offloaded_;  // by offloaded layer: indices into blocks_
};

// Puts masters and moments of a layer that are in a slot of their file (state_offload.h) into their blocks for as long
// as this lives.  Borrows both.
class ScopedState {
 public:
  ScopedState() = default;
  // REQUIRES: equal sizes.
  ScopedState(std::vector<ParameterBlock*> blocks, absl::Span<StateOffload::Tensors> tensors)
      : blocks_(std::move(blocks)), tensors_(tensors) {
    Exchange();
  }
  ~ScopedState() { Exchange(); }
  ScopedState(const ScopedState&) = delete;
  ScopedState& operator=(const ScopedState&) = delete;

 private:
  void Exchange() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      for (size_t s = 0; s < std::size(kState); ++s) std::swap(blocks_[i]->*kState[s], tensors_[i][s]);
    }
  }

  const std::vector<ParameterBlock*> blocks_;
  const absl::Span<StateOffload::Tensors> tensors_;
};

}  // namespace switchyard::train
