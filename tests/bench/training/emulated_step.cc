#include "tests/bench/training/emulated_step.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/reduce_policy.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/simulator/program_costs.h"
#include "tests/bench/sleep_until.h"
#include "workers/model/backward/backward_stages.h"
#include "workers/moe/layer/schedule_executor.h"

namespace switchyard::bench {
namespace {

constexpr int kMaxChunks = 64;

}  // namespace

pipeline::MoeSchedule ScheduleOf(const StepShape& shape, const jobs::CommunicationSpec& spec, int world, int holders) {
  const jobs::LayerRows rows = {.rows = world,
                                .world = world,
                                .holders = holders,
                                .top_k = 1,  // every pair of a row and an expert travels, as the paper's do
                                .row_bytes = shape.row_bytes};
  return pipeline::BuildExpertParallel(
      {.micro_batches = jobs::ChunksOfLayer(spec, rows, kMaxChunks), .in_turn = true, .trains = true});
}

// Runs the program of a MoE layer, and what is between layers.
class EmulatedStep::Layer : public moe::MicroOpRunner {
 public:
  Layer(const EmulatedStep& step, absl::Time deadline, StepTimes* times)
      : step_(step), deadline_(deadline), times_(times) {}

  absl::Status Forward() {
    Begin(step_.schedule_.forward, false);
    return moe::RunSchedule(*ops_, this);
  }
  absl::Status Backward(moe::AllToAllWatch* watch) {
    Begin(step_.schedule_.backward, true);
    return moe::RunSchedule(*ops_, this, watch);
  }

  // Behind compute that ended as it should; behind anything else from now.
  void Compute(absl::Duration time) {
    const absl::Time begin = after_compute_ ? compute_end_ : absl::Now();
    after_compute_ = true;
    compute_end_ = begin + time;
    times_->compute += time;
    SleepUntil(compute_end_);
  }

  absl::Status Start(const pipeline::MicroOp& op) override {
    if (simulator::ExpertProducts(op) > 0) {
      const absl::Duration experts = step_.shape_.experts * simulator::ExpertProducts(op) / step_.schedule_.num_chunks;
      Compute(experts);
      if (!backward_) {
        times_->forward_experts += experts;
        ++times_->forward_expert_ops;
      }
    }
    if (!pipeline::IsCommunicating(op.kind)) return absl::OkStatus();
    after_compute_ = false;
    UnderWay& under_way = works_[static_cast<size_t>(&op - ops_->data())];
    under_way.begin = absl::Now();
    if (num_under_way_++ == 0) under_way_since_ = under_way.begin;
    ASSIGN_OR_RETURN(under_way.work,
                     step_.groups_.row_group->AllToAllV(
                         {.comm_class = comm::CommClass::kAllToAll, .deadline = deadline_}, MessagesOf(op)));
    return absl::OkStatus();
  }

  absl::Status Finish(const pipeline::MicroOp& op) override {
    UnderWay& under_way = works_[static_cast<size_t>(&op - ops_->data())];
    const absl::Time asked = absl::Now();
    RETURN_IF_ERROR(under_way.work->Wait());
    under_way.work.reset();
    after_compute_ = false;
    if (--num_under_way_ == 0 && !backward_) times_->forward_all_to_all += absl::Now() - under_way_since_;
    if (backward_) {
      times_->all_to_alls.push_back({under_way.begin, absl::Now()});
    } else {
      times_->forward_exchange += absl::Now() - asked;
    }
    return absl::OkStatus();
  }

 private:
  struct UnderWay {
    std::unique_ptr<comm::Work> work;
    absl::Time begin;
  };

  void Begin(const std::vector<pipeline::MicroOp>& ops, bool backward) {
    ops_ = &ops;
    backward_ = backward;
    works_.resize(ops.size());
  }

  std::vector<comm::Message> MessagesOf(const pipeline::MicroOp& op) const {
    comm::Communicator* const group = step_.groups_.row_group;
    const pipeline::ChunkRange bytes =
        pipeline::RowsOfChunk(step_.shape_.row_bytes / group->world(), op.chunk, op.num_chunks);
    std::vector<comm::Message> messages(static_cast<size_t>(group->world()));
    for (int rank = 0; rank < group->world(); ++rank) {
      if (rank != group->rank()) messages[static_cast<size_t>(rank)] = group->NewMessage(bytes.count);
    }
    return messages;
  }

  const EmulatedStep& step_;
  const absl::Time deadline_;
  StepTimes* const times_;
  const std::vector<pipeline::MicroOp>* ops_ = nullptr;  // the program
  bool backward_ = false;
  std::vector<UnderWay> works_;  // by its op
  int num_under_way_ = 0;
  absl::Time under_way_since_;
  absl::Time compute_end_;
  bool after_compute_ = false;
};

absl::StatusOr<std::unique_ptr<EmulatedStep>> EmulatedStep::Create(const StepShape& shape,
                                                                   const jobs::CommunicationSpec& spec,
                                                                   const StepGroups& groups) {
  const int packing = groups.replicas == nullptr ? 1 : groups.replicas->world();
  ASSIGN_OR_RETURN(ShapedGradients gradients, ShapedGradients::Create(shape, packing));
  std::unique_ptr<EmulatedStep> step(new EmulatedStep(shape, groups, std::move(gradients)));
  step->schedule_ = ScheduleOf(shape, spec, groups.rows->world(), groups.row_group->world());
  const train::TrainerGroup group = {
      .world = groups.sums, .experts = groups.row_group, .replicas = groups.replicas, .layout = nullptr};
  ASSIGN_OR_RETURN(step->sync_, train::GradientReducer::Create(spec, group, step->gradients_.views()));
  return step;
}

EmulatedStep::EmulatedStep(const StepShape& shape, const StepGroups& groups, ShapedGradients gradients)
    : shape_(shape),
      groups_(groups),
      packing_(groups.replicas == nullptr ? 1 : groups.replicas->world()),
      gradients_(std::move(gradients)) {}

absl::StatusOr<StepTimes> EmulatedStep::Run(absl::Time deadline) {
  StepTimes times;
  Layer layer(*this, deadline, &times);
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> together,
                   groups_.rows->Barrier({.comm_class = comm::CommClass::kControl, .deadline = deadline}));
  RETURN_IF_ERROR(together->Wait());
  groups_.sums->TakeSums();
  times.begin = absl::Now();
  for (int i = 0; i < shape_.layers; ++i) {
    layer.Compute(shape_.attention);
    RETURN_IF_ERROR(layer.Forward());
  }
  times.forward_end = absl::Now();
  sync_->Start(deadline);
  absl::Status status = Backward(&times, &layer);
  times.backward_end = absl::Now();
  if (status.ok()) status = sync_->Finish();
  if (!status.ok()) {
    groups_.sums->Abort(status.message());
    sync_->Cancel();
    return status;
  }
  times.end = absl::Now();
  times.sums = groups_.sums->TakeSums();
  return times;
}

absl::Status EmulatedStep::Backward(StepTimes* times, Layer* layer) {
  sync_->StageDone({.part = model::BackwardPart::kHead});
  for (int i = shape_.layers - 1; i >= 0; --i) {
    sync_->Imminent();
    const absl::Time begin = absl::Now();
    RETURN_IF_ERROR(layer->Backward(sync_.get()));
    times->moe_layers.push_back({begin, absl::Now()});
    const absl::Duration half = shape_.attention * kBackwardOverForward / 2;
    sync_->StageDone({.part = model::BackwardPart::kFeedForward, .layer = i});
    layer->Compute(half);
    sync_->StageDone({.part = model::BackwardPart::kAttentionOut, .layer = i});
    layer->Compute(half);
    sync_->StageDone({.part = model::BackwardPart::kAttentionIn, .layer = i});
  }
  sync_->StageDone({.part = model::BackwardPart::kEmbedding});
  return absl::OkStatus();
}

absl::StatusOr<TimeSpan> EmulatedStep::SumAll(absl::Time deadline) {
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> together,
                   groups_.rows->Barrier({.comm_class = comm::CommClass::kControl, .deadline = deadline}));
  RETURN_IF_ERROR(together->Wait());
  const absl::Time begin = absl::Now();
  sync_->Start(deadline);
  for (const model::BackwardStage& stage : model::BackwardStages(shape_.layers)) sync_->StageDone(stage);
  RETURN_IF_ERROR(sync_->Finish());
  return TimeSpan{begin, absl::Now()};
}

}  // namespace switchyard::bench
