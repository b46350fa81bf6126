// A layer of the test model trained for a step or more: forward that saves, backward, and what all ranks' gradients are
// together.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/pipeline/restore_strategy.h"
#include "tests/reference/moe_backward.h"
#include "tests/workers/moe/moe_run.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/tensor/tensor.h"

namespace switchyard::test {

// One rank's transposed weights and gradients, which begin as zeros.
class MoeTrained {
 public:
  // stream and layout: as MoeTestModel::LayerOf's.
  MoeTrained(const MoeTestModel& model, const Stream& stream, const moe::ExpertLayout& layout, int rank);

  const moe::MoeBackwardWeights& weights() const { return weights_; }
  // Adds this rank's gradients.
  void AddTo(reference::MoeMatrices* sums) const;

 private:
  ops::TrainedMatrix Train(const Stream& stream, const std::vector<double>& values, int64_t n, int64_t k);

  const DType dtype_;
  std::vector<int32_t> residents_;
  std::deque<ops::Weight> transposed_;  // what the views show stays where it is
  std::deque<Tensor> gradients_;
  std::vector<ops::FfnGradients> experts_;
  ops::FfnGradients shared_;
  moe::MoeBackwardWeights weights_;
};

// How rows are shared out in a parameterised test.
struct MoeSpread {
  std::string name;
  std::vector<int64_t> rank_rows;
  int micro_batches = 1;
  Backend backend = Backend::kLocal;

  MoeRun RunOf(int num_experts) const {
    return {.backend = backend,
            .layout = moe::ExpertLayout::Contiguous(num_experts, static_cast<int>(rank_rows.size())),
            .rank_rows = rank_rows,
            .micro_batches = micro_batches};
  }
};

struct MoeTrainingRun {
  MoeRun run;                         // how rows are shared out; its exchange is the host's
  std::vector<double> prob_gradient;  // as RouterLoss
  double z_scale = 0;
  bool d_x_in_acc = false;
  int threads = 0;  // of each rank; 0 = one or two, by rank
  pipeline::RestoreStrategy restore = {};
  bool dispatch_first = false, joint_gradients = false;  // of ExpertParallelOptions
  int64_t late = -1;                                     // >= 0: rank 1's launch of this number comes late
};

struct MoeTrainingResult {
  std::string residual;  // bytes of [T, H]
  std::string d_x;       // likewise
  std::vector<double> d_x_values;
  reference::MoeMatrices gradients;  // all ranks'
  std::vector<uint64_t> ledgers;     // [R]
};

// `steps` forward and backward passes over the same rows; gradients add up.
absl::StatusOr<MoeTrainingResult> TrainMoe(const MoeTestModel& model, const MoeTrainingRun& training,
                                           const TensorView& x, const TensorView& residual,
                                           const TensorView& d_residual, int steps = 1);

// The same problem for the naive reference.
reference::MoeProblem ProblemOf(const MoeTestModel& model, const MoeTrainingRun& training, const TensorView& x,
                                const TensorView& d_residual);

}  // namespace switchyard::test
