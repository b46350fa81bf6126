// Every metric of a worker, in one table (metrics.cc).  Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "scheduler/batching/step.h"
#include "workers/comm/tcp/socket_traffic.h"
#include "workers/model/runner/device_steps.h"
#include "workers/moe/experts/cold_experts.h"
#include "workers/moe/experts/expert_offload.h"
#include "workers/moe/placement/replicated_experts.h"
#include "workers/moe/popularity/row_load_predictor.h"
#include "workers/train/job/checkpoint_saver.h"
#include "workers/train/job/train_listener.h"

namespace switchyard::worker {

class WorkerMetrics {
 public:
  WorkerMetrics();

  // Serves /metrics on host:port (0 = any free one); returns the port, or -1 when the address is taken.
  int Expose(const std::string& host, int port);
  void ObserveStep(const batching::RankResult& result);
  // How right estimators of coming layers were lately, and what forecasting took since it had taken `reported`.
  void ObserveForecasts(const moe::RowLoadPredictor& load_predictor, absl::Duration* reported);
  // Adds what a store has counted since `reported`, which becomes `now`.  A new store counts from 0.
  void ObserveExperts(const moe::ExpertOffloadCounters& now, moe::ExpertOffloadCounters* reported);

  // The same for steps that are captured and replayed, whose counts never fall.
  void ObserveGraphs(const model::GraphCounters& now, model::GraphCounters* reported);

  // The same for the cold experts that the host computed.
  void ObserveCold(const moe::ColdCounters& now, moe::ColdCounters* reported);

  // Observes a training job's step, and a complete checkpoint.
  void ObserveTraining(const train::StepProgress& progress);
  void ObserveSaved(const train::SavedStep& saved);
  // Observes training in time slices: how long it took to stop for a plan, beside its limit; how long it ran.
  void ObserveYield(absl::Duration yield, absl::Duration limit);
  void ObserveOpened(absl::Duration now, absl::Duration* reported);

  // Traffic of groups whose all-to-alls overtake sums: counted there, read when the page is asked for.
  comm::SocketTraffic* traffic() { return &traffic_->counted; }

  // The same for a placement's copies.
  void ObservePlacement(const moe::ReplicatedExpertsCounters& now, moe::ReplicatedExpertsCounters* reported);

  prometheus::Histogram* step_seconds = nullptr;
  prometheus::Histogram* attention_seconds = nullptr;
  prometheus::Histogram* expert_seconds = nullptr;
  prometheus::Histogram* exchange_seconds = nullptr;
  prometheus::Histogram* head_seconds = nullptr;
  prometheus::Counter* rows = nullptr;
  prometheus::Counter* expert_rows = nullptr;
  prometheus::Counter* rows_sent = nullptr;
  prometheus::Counter* rows_received = nullptr;
  prometheus::Gauge* weight_bytes = nullptr;
  prometheus::Gauge* shared_weight_bytes = nullptr;
  prometheus::Gauge* kv_blocks = nullptr;
  prometheus::Gauge* rank = nullptr;
  prometheus::Gauge* group_epoch = nullptr;
  prometheus::Counter* group_faults = nullptr;
  prometheus::Counter* graph_steps = nullptr;
  prometheus::Counter* graph_captures = nullptr;
  prometheus::Counter* graph_capture_seconds = nullptr;
  prometheus::Counter* graphs_without_memory = nullptr;
  prometheus::Counter* cublas_refusals = nullptr;
  prometheus::Gauge* device_bytes = nullptr;
  prometheus::Counter* expert_hits = nullptr;
  prometheus::Counter* expert_misses = nullptr;
  prometheus::Counter* expert_late = nullptr;
  prometheus::Counter* expert_prefetched = nullptr;
  prometheus::Counter* expert_wasted = nullptr;
  prometheus::Counter* expert_copied_bytes = nullptr;
  prometheus::Counter* expert_copy_seconds = nullptr;
  prometheus::Counter* expert_failed_copies = nullptr;
  prometheus::Counter* expert_wait_seconds = nullptr;
  prometheus::Counter* expert_plan_seconds = nullptr;
  prometheus::Counter* expert_host_rows = nullptr;
  prometheus::Counter* expert_host_seconds = nullptr;
  prometheus::Counter* placement_gather_seconds = nullptr;
  prometheus::Counter* placement_decide_seconds = nullptr;
  prometheus::Counter* placement_decide_cpu_seconds = nullptr;
  prometheus::Counter* placement_fine_tuned_layers = nullptr;
  prometheus::Counter* placement_fill_copies = nullptr;
  prometheus::Counter* placement_demand_copies = nullptr;
  prometheus::Counter* placement_prefetch_copies = nullptr;
  prometheus::Counter* placement_copied_bytes = nullptr;
  prometheus::Counter* placement_failed_copies = nullptr;
  prometheus::Counter* placement_late_copies = nullptr;
  prometheus::Counter* placement_wait_seconds = nullptr;
  prometheus::Counter* forecast_seconds = nullptr;
  prometheus::Histogram* train_step_seconds = nullptr;
  prometheus::Histogram* train_checkpoint_seconds = nullptr;
  prometheus::Histogram* train_yield_seconds = nullptr;
  prometheus::Counter* train_steps = nullptr;
  prometheus::Counter* train_tokens = nullptr;
  prometheus::Counter* train_forward_seconds = nullptr;
  prometheus::Counter* train_backward_seconds = nullptr;
  prometheus::Counter* train_expert_seconds = nullptr;
  prometheus::Counter* train_all_to_all_seconds = nullptr;
  prometheus::Counter* train_all_reduce_seconds = nullptr;
  prometheus::Counter* train_optimizer_seconds = nullptr;
  prometheus::Counter* train_offload_wait_seconds = nullptr;
  prometheus::Counter* train_activation_wait_seconds = nullptr;
  prometheus::Counter* train_saved_activation_bytes = nullptr;
  prometheus::Counter* train_data_seconds = nullptr;
  prometheus::Counter* train_checkpoint_wait_seconds = nullptr;
  prometheus::Counter* train_checkpoint_bytes = nullptr;
  prometheus::Counter* train_dropped_rows = nullptr;
  prometheus::Counter* train_packing_decisions = nullptr;
  prometheus::Counter* train_late_yields = nullptr;
  prometheus::Counter* train_slice_seconds = nullptr;
  prometheus::Gauge* train_step = nullptr;
  prometheus::Gauge* train_loss = nullptr;
  prometheus::Gauge* train_gradient_norm = nullptr;
  prometheus::Gauge* train_learning_rate = nullptr;
  prometheus::Gauge* train_tokens_per_second = nullptr;
  prometheus::Gauge* train_dead_experts = nullptr;
  prometheus::Gauge* train_packing = nullptr;
  prometheus::Gauge* train_offloaded_bytes = nullptr;
  prometheus::Gauge* train_checkpoint_time = nullptr;

 private:
  void ObserveCopyPath(moe::CopyPath now);

  struct Traffic final : prometheus::Collectable {
    std::vector<prometheus::MetricFamily> Collect() const override;
    comm::SocketTraffic counted;
  };

  std::shared_ptr<prometheus::Registry> registry_;
  std::shared_ptr<Traffic> traffic_ = std::make_shared<Traffic>();  // as the exposer wants it
  prometheus::Family<prometheus::Gauge>*estimate_distance_, *estimate_accuracy_, *copy_path_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace switchyard::worker
