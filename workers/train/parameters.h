// What training keeps of every parameter of a model: its master value, its gradient and AdamW's two moments, all in
// AccDType (fp32; fp64 for an fp64 model), and the transposed weights that backward reads.
//
// A block is one packed weight of the model, or one vector: q, k and v are one block, gate and up of an expert are one.
// A block's parts say which tensors of a checkpoint its rows are.  Masters are what is trained; Publish rounds them
// into the model.  A block of an expert is on the ranks that hold that expert, all others are on every rank.
// Thread-compatible.  CPU only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "workers/checkpoint/safetensors.h"
#include "workers/model/model.h"
#include "workers/model/model_gradients.h"
#include "workers/model/params.h"
#include "workers/ops/weight.h"
#include "workers/tensor/device.h"
#include "workers/tensor/tensor.h"

namespace switchyard {

struct ParameterBlock {
  std::vector<Param> parts;  // in the order of their rows
  Shard shard = Shard::kReplicated;
  bool decayed = false;      // weight decay: of matrices alone
  Weight* weight = nullptr;  // of the model; exactly one of the two
  Tensor* tensor = nullptr;
  Weight transposed;          // [k, n], of weights
  Tensor master, gradient;    // [rows, columns] AccDType; of vectors [n, 1]
  Tensor mean, mean_squares;  // AdamW's first and second moment, likewise

  int64_t size() const { return master.view().NumElements(); }
};

struct InitialValues {
  uint64_t seed = 0;
  double range =
      0.02;  // standard deviation of matrices (HF's initializer_range); vectors of norms begin at 1, biases 0
};

class Parameters {
 public:
  // Zeroed moments and gradients; masters are undefined until Initialise or Load.  model: borrowed, must outlive this.
  // Errors: Unimplemented on a device or where a store has the experts; ResourceExhausted with needed and available
  // bytes.
  static absl::StatusOr<std::unique_ptr<Parameters>> Create(const Stream& stream, Model* model);

  // Masters from a generator that is keyed by (seed, name, element): the same values on any number of ranks.
  absl::Status Initialise(const InitialValues& values);
  // Masters as the checkpoint has them, whatever its dtype.  Errors: the loader's.
  absl::Status Load(const Checkpoint& checkpoint, int num_threads);
  // The model's weights, and their transposes, become the masters, rounded to the model's dtype.
  absl::Status Publish();
  absl::Status ZeroGradients();

  std::vector<ParameterBlock>& blocks() { return blocks_; }
  const std::vector<ParameterBlock>& blocks() const { return blocks_; }
  const ModelGradients& gradients() const { return gradients_; }
  // Of this rank's blocks.
  int64_t num_values() const;
  int64_t bytes() const;

 private:
  Parameters(const Stream& stream, Model* model) : stream_(stream), model_(model) {}
  absl::Status AddBlock(const Param& param);
  void LinkGradients();
  TrainedMatrix MatrixOf(const Weight& weight) const;
  TensorView VectorOf(const Tensor& tensor) const;

  const Stream stream_;
  Model* const model_;
  std::vector<ParameterBlock> blocks_;
  ModelGradients gradients_;
};

}  // namespace switchyard
