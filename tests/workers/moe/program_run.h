// Programs of a MoE layer on ranks in groups: what a builder makes for a mesh, and one step of it on every rank.
#pragma once

#include <cstdint>
#include <deque>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/pipeline/moe_schedule.h"
#include "tests/workers/moe/moe_training.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard::test {

inline constexpr int kProgramExperts = 8;
inline constexpr int64_t kProgramFfn = 48;

// P ranks in groups: neighbours hold shards of the same experts, neighbours have the same rows.
struct ProgramMesh {
  int ranks = 1, shards = 1, copies = 1;
};

struct ProgramCase {
  std::string name;
  pipeline::MoeSchedule schedule;
  pipeline::Group dispatch = pipeline::Group::kExperts;
  // How often gradients of experts' and of the router's weights occur, summed over all ranks.
  int expert_times = 1, router_times = 1;
  bool one_ranks_bits = true;
};

// All that the builders make for the mesh.
std::vector<ProgramCase> ProgramsOf(const ProgramMesh& mesh);

// What varies besides.
struct ProgramSetting {
  MoeShape shape;
  std::vector<int64_t> rows;  // of each group of copies
  int64_t capacity = 0;       // of an expert
  Backend backend = Backend::kLocal;
  bool jitter = false;
  int64_t fails_at = -1;  // >= 0: rank 1's launch of this number fails
};

// Shard `s` of a model's experts.
reference::MoeMatrices ShardOf(const reference::MoeMatrices& whole, const MoeShape& shape, int shards, int s);

struct ProgramOutcome {
  std::vector<std::string> residuals, d_xs;             // [P] bytes
  std::vector<std::vector<double>> values, d_x_values;  // [P]
  std::vector<reference::MoeMatrices> gradients;        // [shards]
};

class ProgramRunner {
 public:
  ProgramRunner(const ProgramMesh& mesh, const ProgramSetting& setting);

  // One forward and backward pass on every rank.  Errors: the first rank's.
  absl::StatusOr<ProgramOutcome> Run(const ProgramCase& program);
  // The same on the rank of this communicator alone; returns the bytes of its residual, then of its d_x.
  absl::StatusOr<std::string> RunAs(const ProgramCase& program, comm::Communicator* world);

  Tensor x() const { return model_.RandomRows(num_rows_, 6); }
  Tensor residual() const { return model_.RandomResidual(num_rows_, 7); }
  Tensor d_residual() const { return model_.RandomResidual(num_rows_, 8); }
  // Rows [begin, begin + count) of the group of copies.
  std::pair<int64_t, int64_t> RowsOf(int group) const {
    return {std::accumulate(setting_.rows.begin(), setting_.rows.begin() + group, int64_t{0}),
            setting_.rows[static_cast<size_t>(group)]};
  }
  const MoeTestModel& model() const { return model_; }
  const std::vector<double>& prob_gradient() const { return prob_gradient_; }
  static constexpr double kZScale = 1e-2;

 private:
  const MoeTestModel& ShardModel(int rank) const { return shards_[static_cast<size_t>(rank % mesh_.shards)]; }
  // Where the experts of a rank are in the order of whole ones.
  moe::ExpertLayout LocalLayout(const ProgramCase& program) const {
    return moe::ExpertLayout::Contiguous(
        kProgramExperts, program.dispatch == pipeline::Group::kSelf ? mesh_.copies : mesh_.ranks / mesh_.shards);
  }
  int LocalRank(const ProgramCase& program, int rank) const {
    return program.dispatch == pipeline::Group::kSelf ? rank % mesh_.copies : rank / mesh_.shards;
  }
  // Of the group that rows are dispatched among.
  moe::ExpertLayout LayoutOf(const ProgramCase& program) const;
  absl::Status RunRank(const ProgramCase& program, comm::Communicator* world, MoeTrained* trained,
                       ProgramOutcome* outcome);

  const ProgramMesh mesh_;
  const ProgramSetting setting_;
  ThreadPool pool_{1, false};
  const Stream stream_ = Stream::OnCpu(&pool_);
  const MoeTestModel model_;
  std::deque<MoeTestModel> shards_;  // of it
  const int64_t num_rows_;
  std::vector<double> prob_gradient_;
};

}  // namespace switchyard::test
