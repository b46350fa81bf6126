#include "workers/process/metrics.h"

#include <exception>
#include <limits>

#include "absl/time/clock.h"
#include "proto/support/host_port.h"
#include "workers/ops/gemm/cublas_refusals.h"

namespace switchyard::worker {
namespace {

const prometheus::Histogram::BucketBoundaries kSeconds = {.0002, .0005, .001, .002, .005, .01, .02, .05,
                                                          .1,    .2,    .5,   1,    2,    5,   10};

template <class Metric>
struct Row {
  const char* name;
  const char* help;
  Metric* WorkerMetrics::*member;
};

using M = WorkerMetrics;
constexpr Row<prometheus::Histogram> kHistograms[] = {
    {"switchyard_worker_step_seconds", "One step on this worker.", &M::step_seconds},
    {"switchyard_worker_attention_seconds", "Attention of a step, all layers.", &M::attention_seconds},
    {"switchyard_worker_moe_expert_seconds", "Experts of a step, all layers.", &M::expert_seconds},
    {"switchyard_worker_moe_exchange_seconds", "Exchanges of a step, waiting included.", &M::exchange_seconds},
    {"switchyard_worker_head_seconds", "lm_head and sampling of a step.", &M::head_seconds},
    {"switchyard_worker_train_step_seconds", "One training step on rank 0.", &M::train_step_seconds},
    {"switchyard_worker_train_checkpoint_seconds", "From a checkpoint's copy in memory until it counts.",
     &M::train_checkpoint_seconds},
    {"switchyard_worker_train_yield_seconds",
     "From a plan's arrival until the products of training that it interrupts have stopped, on a worker that does "
     "both.",
     &M::train_yield_seconds},
};
constexpr Row<prometheus::Counter> kCounters[] = {
    {"switchyard_worker_rows_total", "Token rows computed.", &M::rows},
    {"switchyard_worker_moe_tokens_computed_total", "Rows that the experts here computed, all layers.",
     &M::expert_rows},
    {"switchyard_worker_moe_tokens_sent_total", "Rows sent to the experts of other ranks.", &M::rows_sent},
    {"switchyard_worker_moe_tokens_received_total", "Rows that the experts here computed for other ranks.",
     &M::rows_received},
    {"switchyard_worker_group_faults_total", "Epochs that ended by an error on this worker.", &M::group_faults},
    {"switchyard_worker_graph_steps_total", "Steps of decodes that a device replayed as recorded.", &M::graph_steps},
    {"switchyard_worker_graph_captures_total", "Graphs of decode steps that were captured on a device.",
     &M::graph_captures},
    {"switchyard_worker_graph_capture_seconds_total", "Seconds in which they were captured.",
     &M::graph_capture_seconds},
    {"switchyard_worker_graphs_without_memory_total",
     "Captures that found no memory for the graph; such steps and larger ones run without.", &M::graphs_without_memory},
    {"switchyard_worker_cublas_refusals_total", "Products that cuBLASLt refused, so that a slower kernel took them.",
     &M::cublas_refusals},
    {"switchyard_worker_expert_hits_total", "Experts of a budget's that were there when a layer needed them.",
     &M::expert_hits},
    {"switchyard_worker_expert_misses_total", "Experts of a budget's that a layer had to have copied.",
     &M::expert_misses},
    {"switchyard_worker_expert_late_total", "Experts that a layer needed while their prefetch was under way.",
     &M::expert_late},
    {"switchyard_worker_expert_prefetched_total", "Experts that were copied before a layer needed them.",
     &M::expert_prefetched},
    {"switchyard_worker_expert_wasted_total", "Prefetched experts that went before a layer needed them.",
     &M::expert_wasted},
    {"switchyard_worker_expert_copied_bytes_total", "Bytes of experts that were copied.", &M::expert_copied_bytes},
    {"switchyard_worker_expert_copy_seconds_total", "Seconds in which bytes of experts were on their way.",
     &M::expert_copy_seconds},
    {"switchyard_worker_expert_failed_copies_total",
     "Copies for an expert budget that failed, or brought other bytes than the expert file was made with.",
     &M::expert_failed_copies},
    {"switchyard_worker_expert_wait_seconds_total", "Seconds that layers waited for experts.", &M::expert_wait_seconds},
    {"switchyard_worker_expert_plan_seconds_total", "Seconds in which copies were planned.", &M::expert_plan_seconds},
    {"switchyard_worker_expert_host_rows_total", "Rows of a GPU's cold experts that the host computed.",
     &M::expert_host_rows},
    {"switchyard_worker_expert_host_seconds_total", "Seconds that the host took for them.", &M::expert_host_seconds},
    {"switchyard_worker_placement_gather_seconds_total", "Seconds in which ranks gathered counts and estimates.",
     &M::placement_gather_seconds},
    {"switchyard_worker_placement_decide_seconds_total", "Seconds that layers waited for where their rows go.",
     &M::placement_decide_seconds},
    {"switchyard_worker_placement_decide_cpu_seconds_total", "CPU seconds of these decisions.",
     &M::placement_decide_cpu_seconds},
    {"switchyard_worker_placement_fine_tuned_layers_total", "Layers whose experts moved after their gate.",
     &M::placement_fine_tuned_layers},
    {"switchyard_worker_placement_fill_copies_total", "Experts copied when a group began.", &M::placement_fill_copies},
    {"switchyard_worker_placement_demand_copies_total", "Experts copied after the gate of their layer.",
     &M::placement_demand_copies},
    {"switchyard_worker_placement_prefetch_copies_total", "Experts copied by an estimate of a coming layer.",
     &M::placement_prefetch_copies},
    {"switchyard_worker_placement_copied_bytes_total", "Bytes of experts that a placement copied.",
     &M::placement_copied_bytes},
    {"switchyard_worker_placement_failed_copies_total", "Copies that failed, or brought other bytes than the source's.",
     &M::placement_failed_copies},
    {"switchyard_worker_placement_late_copies_total", "Experts that a layer had to wait for.",
     &M::placement_late_copies},
    {"switchyard_worker_placement_wait_seconds_total", "Seconds that layers waited for late experts.",
     &M::placement_wait_seconds},
    {"switchyard_worker_forecast_seconds_total", "Seconds that forecasting coming layers' experts took.",
     &M::forecast_seconds},
    {"switchyard_worker_train_steps_total", "Training steps done, on rank 0 as all that follows.", &M::train_steps},
    {"switchyard_worker_train_tokens_total", "Tokens trained, on all ranks.", &M::train_tokens},
    {"switchyard_worker_train_forward_seconds_total", "Seconds of forward passes.", &M::train_forward_seconds},
    {"switchyard_worker_train_backward_seconds_total", "Seconds of backward passes.", &M::train_backward_seconds},
    {"switchyard_worker_train_expert_seconds_total", "Of both, seconds of experts' products.",
     &M::train_expert_seconds},
    {"switchyard_worker_train_all_to_all_seconds_total", "Of both, seconds in exchanges of rows.",
     &M::train_all_to_all_seconds},
    {"switchyard_worker_train_all_reduce_seconds_total", "Seconds that steps waited for sums of gradients.",
     &M::train_all_reduce_seconds},
    {"switchyard_worker_train_optimizer_seconds_total", "Seconds of the optimizer.", &M::train_optimizer_seconds},
    {"switchyard_worker_train_offload_wait_seconds_total",
     "Seconds of the optimizer that waited for the file of offloaded masters and moments.",
     &M::train_offload_wait_seconds},
    {"switchyard_worker_train_activation_wait_seconds_total",
     "Of forward and backward, seconds that waited for the file of offloaded activations.",
     &M::train_activation_wait_seconds},
    {"switchyard_worker_train_saved_activation_bytes_total", "Bytes of activations written to a file.",
     &M::train_saved_activation_bytes},
    {"switchyard_worker_train_data_seconds_total", "Seconds in which tokens were read.", &M::train_data_seconds},
    {"switchyard_worker_train_checkpoint_wait_seconds_total", "Seconds that steps waited for a checkpoint to begin.",
     &M::train_checkpoint_wait_seconds},
    {"switchyard_worker_train_checkpoint_bytes_total", "Bytes of checkpoints written, by all ranks.",
     &M::train_checkpoint_bytes},
    {"switchyard_worker_train_late_yields_total", "Of those, longer than --train_yield_ms.", &M::train_late_yields},
    {"switchyard_worker_train_slice_seconds_total", "Seconds in which a worker that also serves let training run.",
     &M::train_slice_seconds},
    {"switchyard_worker_train_dropped_rows_total", "Rows that experts' capacity cut off.", &M::train_dropped_rows},
    {"switchyard_worker_train_packing_decisions_total",
     "Decisions about packing of experts, those that change nothing among them.", &M::train_packing_decisions},
};
constexpr Row<prometheus::Gauge> kGauges[] = {
    {"switchyard_worker_weight_bytes", "Bytes of weights held.", &M::weight_bytes},
    {"switchyard_worker_shared_weight_bytes",
     "Of these, those that other workers of the machine hold in the same memory.", &M::shared_weight_bytes},
    {"switchyard_worker_kv_blocks", "Blocks of the KV cache.", &M::kv_blocks},
    {"switchyard_worker_device_bytes", "Bytes of a device's memory that this worker holds; 0 on the CPU.",
     &M::device_bytes},
    {"switchyard_worker_rank", "Rank in the group, -1 without one.", &M::rank},
    {"switchyard_worker_group_epoch", "Epoch of the group.", &M::group_epoch},
    {"switchyard_worker_train_step", "Steps that the job has done.", &M::train_step},
    {"switchyard_worker_train_loss",
     "Loss of the last step: mean cross-entropy, nats a token; with preferences mean of the pairs' losses.",
     &M::train_loss},
    {"switchyard_worker_train_gradient_norm", "Norm of its gradients before they were clipped.",
     &M::train_gradient_norm},
    {"switchyard_worker_train_learning_rate", "Its learning rate.", &M::train_learning_rate},
    {"switchyard_worker_train_tokens_per_second", "Tokens a second, lately.", &M::train_tokens_per_second},
    {"switchyard_worker_train_dead_experts", "Experts that no token of the step chose, of all layers.",
     &M::train_dead_experts},
    {"switchyard_worker_train_packing", "Replicas of every expert that the job's ranks keep.", &M::train_packing},
    {"switchyard_worker_train_offloaded_bytes", "Bytes of experts' masters and moments that are in a file.",
     &M::train_offloaded_bytes},
    {"switchyard_worker_train_checkpoint_timestamp_seconds", "When the last checkpoint counted, in Unix time.",
     &M::train_checkpoint_time},
};

template <class Number>
void Add(prometheus::Counter* counter, Number before, Number now) {
  counter->Increment(static_cast<double>(now - before));
}

// Forgets what was reported if one of these counts is lower than then: another store has counted anew.
template <class Counters, class... Member>
void ForgetIfFell(const Counters& now, Counters* reported, Member... counts) {
  if (((now.*counts < reported->*counts) || ...)) *reported = {};
}

}  // namespace

WorkerMetrics::WorkerMetrics() : registry_(std::make_shared<prometheus::Registry>()) {
  for (const auto& row : kHistograms) {
    this->*row.member =
        &prometheus::BuildHistogram().Name(row.name).Help(row.help).Register(*registry_).Add({}, kSeconds);
  }
  for (const auto& row : kCounters) {
    this->*row.member = &prometheus::BuildCounter().Name(row.name).Help(row.help).Register(*registry_).Add({});
  }
  for (const auto& row : kGauges) {
    this->*row.member = &prometheus::BuildGauge().Name(row.name).Help(row.help).Register(*registry_).Add({});
  }
  const auto family = [this](const char* name, const char* help) {
    return &prometheus::BuildGauge().Name(name).Help(help).Register(*registry_);
  };
  estimate_distance_ = family("switchyard_worker_estimate_distance_ratio",
                              "Total-variation distance of an estimate of a layer's popularity, mean over layers.");
  estimate_accuracy_ = family("switchyard_worker_estimate_accuracy_ratio",
                              "Share of batches whose set of the 2k most popular experts was right, mean over layers.");
  copy_path_ = family("switchyard_worker_expert_copy_path",
                      "1 for the way in which experts come to a GPU, or from a disk (server/README.md).");
  rank->Set(-1);
}

std::vector<prometheus::MetricFamily> WorkerMetrics::Traffic::Collect() const {
  const auto family = [](const char* name, const char* help) {
    prometheus::MetricFamily made;
    made.name = name;
    made.help = help;
    made.type = prometheus::MetricType::Counter;
    return made;
  };
  const auto add = [](prometheus::MetricFamily* to, std::vector<prometheus::ClientMetric::Label> labels,
                      int64_t value) {
    prometheus::ClientMetric& metric = to->metric.emplace_back();
    metric.label = std::move(labels);
    metric.counter.value = static_cast<double>(value);
  };
  prometheus::MetricFamily frames =
      family("switchyard_worker_train_frames_total", "Frames that training sent, by class of collective.");
  prometheus::MetricFamily bytes =
      family("switchyard_worker_train_frame_bytes_total", "Bytes of these frames, heads of messages included.");
  prometheus::MetricFamily overtaken =
      family("switchyard_worker_train_overtaken_total", "Messages that went before one of a sum that could have gone.");
  for (int i = 0; i < comm::kNumCommClasses; ++i) {
    const std::vector<prometheus::ClientMetric::Label> labels = {
        {"class", comm::CommClassName(static_cast<comm::CommClass>(i))}};
    add(&frames, labels, counted.frames[static_cast<size_t>(i)]);
    add(&bytes, labels, counted.bytes[static_cast<size_t>(i)]);
  }
  add(&overtaken, {}, counted.overtaken);
  return {frames, bytes, overtaken};
}

int WorkerMetrics::Expose(const std::string& host, int port) {
  try {  // civetweb throws when the address is taken
    // Each request occupies a thread while it arrives, for two seconds at most, so requests that hang occupy few
    // threads, and not for long.
    exposer_ = std::make_unique<prometheus::Exposer>(
        std::vector<std::string>{"listening_ports", rpc::JoinHostPort(host, port), "num_threads", "32",
                                 "request_timeout_ms", "2000", "enable_keep_alive", "no"});
    exposer_->RegisterCollectable(registry_);
    exposer_->RegisterCollectable(traffic_);
    const std::vector<int> ports = exposer_->GetListeningPorts();
    return ports.empty() ? -1 : ports[0];
  } catch (const std::exception&) {
    return -1;
  }
}

void WorkerMetrics::ObserveCopyPath(moe::CopyPath now) {
  if (now == moe::CopyPath::kMemory) return;  // no experts are copied, or from memory to memory
  for (const moe::CopyPath path : {moe::CopyPath::kRegisteredReadOnly, moe::CopyPath::kRegistered,
                                   moe::CopyPath::kPinnedPieces, moe::CopyPath::kDisk, moe::CopyPath::kDiskCached}) {
    copy_path_->Add({{"path", moe::CopyPathName(path)}}).Set(path == now ? 1 : 0);
  }
}

void WorkerMetrics::ObserveExperts(const moe::ExpertOffloadCounters& now, moe::ExpertOffloadCounters* reported) {
  using C = moe::ExpertOffloadCounters;
  ForgetIfFell(now, reported, &C::hits, &C::misses, &C::late, &C::prefetched, &C::copied_bytes, &C::failed);
  Add(expert_hits, reported->hits, now.hits);
  Add(expert_misses, reported->misses, now.misses);
  Add(expert_late, reported->late, now.late);
  Add(expert_prefetched, reported->prefetched, now.prefetched);
  Add(expert_wasted, reported->wasted, now.wasted);
  Add(expert_copied_bytes, reported->copied_bytes, now.copied_bytes);
  Add(expert_copy_seconds, reported->copy_seconds, now.copy_seconds);
  Add(expert_failed_copies, reported->failed, now.failed);
  Add(expert_wait_seconds, reported->wait_seconds, now.wait_seconds);
  Add(expert_plan_seconds, reported->plan_seconds, now.plan_seconds);
  ObserveCopyPath(now.path);
  *reported = now;
}

void WorkerMetrics::ObserveGraphs(const model::GraphCounters& now, model::GraphCounters* reported) {
  Add(graph_captures, reported->captured, now.captured);
  Add(graphs_without_memory, reported->did_not_fit, now.did_not_fit);
  Add(graph_capture_seconds, reported->capture_seconds, now.capture_seconds);
  Add(graph_steps, reported->replayed, now.replayed);
  *reported = now;
}

void WorkerMetrics::ObserveCold(const moe::ColdCounters& now, moe::ColdCounters* reported) {
  ForgetIfFell(now, reported, &moe::ColdCounters::rows);
  Add(expert_host_rows, reported->rows, now.rows);
  Add(expert_host_seconds, reported->seconds, now.seconds);
  *reported = now;
}

void WorkerMetrics::ObservePlacement(const moe::ReplicatedExpertsCounters& now,
                                     moe::ReplicatedExpertsCounters* reported) {
  using C = moe::ReplicatedExpertsCounters;
  ForgetIfFell(now, reported, &C::copied_bytes, &C::wait_seconds);
  for (size_t reason = 0; reason < moe::kNumCopyReasons; ++reason) {
    if (now.copies[reason] < reported->copies[reason]) *reported = {};
  }
  prometheus::Counter* const copies[moe::kNumCopyReasons] = {placement_fill_copies, placement_demand_copies,
                                                             placement_prefetch_copies};
  for (size_t reason = 0; reason < moe::kNumCopyReasons; ++reason) {
    Add(copies[reason], reported->copies[reason], now.copies[reason]);
  }
  Add(placement_copied_bytes, reported->copied_bytes, now.copied_bytes);
  Add(placement_failed_copies, reported->failed, now.failed);
  Add(placement_late_copies, reported->late, now.late);
  Add(placement_wait_seconds, reported->wait_seconds, now.wait_seconds);
  ObserveCopyPath(now.path);
  *reported = now;
}

void WorkerMetrics::ObserveForecasts(const moe::RowLoadPredictor& load_predictor, absl::Duration* reported) {
  const absl::Duration spent = load_predictor.spent();
  if (spent < *reported) *reported = absl::ZeroDuration();
  Add(forecast_seconds, absl::ToDoubleSeconds(*reported), absl::ToDoubleSeconds(spent));
  *reported = spent;
  for (const popularity::Phase phase : {popularity::Phase::kPrefill, popularity::Phase::kDecode}) {
    for (int j = 0; j < popularity::kNumLivePredictors * popularity::kMaxAhead; ++j) {
      const auto estimator = static_cast<popularity::LivePredictor>(j / popularity::kMaxAhead);
      const int ahead = 1 + j % popularity::kMaxAhead;
      const popularity::EstimateMeans means = load_predictor.phase(phase).MeansOf(estimator, ahead);
      if (means.num_layers == 0) continue;
      const prometheus::Labels labels = {{"estimator", std::string(NameOf(estimator))},
                                         {"ahead", std::to_string(ahead)},
                                         {"phase", std::string(NameOf(phase))}};
      estimate_distance_->Add(labels).Set(means.distance);
      estimate_accuracy_->Add(labels).Set(means.accuracy);
    }
  }
}

void WorkerMetrics::ObserveTraining(const train::StepProgress& progress) {
  const train::StepReport& report = progress.report;
  train_steps->Increment();
  train_tokens->Increment(static_cast<double>(report.tokens));
  train_step_seconds->Observe(progress.total_seconds);
  train_forward_seconds->Increment(report.seconds.forward);
  train_backward_seconds->Increment(report.seconds.backward);
  train_expert_seconds->Increment(report.seconds.experts + report.seconds.backward_experts);
  train_all_to_all_seconds->Increment(report.seconds.all_to_all);
  train_all_reduce_seconds->Increment(report.seconds.all_reduce);
  train_optimizer_seconds->Increment(report.seconds.optimizer);
  train_offload_wait_seconds->Increment(report.seconds.offload);
  train_activation_wait_seconds->Increment(report.seconds.activations);
  train_saved_activation_bytes->Increment(static_cast<double>(report.saved_bytes));
  train_offloaded_bytes->Set(static_cast<double>(report.offloaded_bytes));
  train_data_seconds->Increment(progress.data_seconds);
  train_dropped_rows->Increment(static_cast<double>(report.dropped_rows));
  train_step->Set(static_cast<double>(progress.step));
  // A step that was skipped has measured nothing; a zero would look like a value.
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  train_loss->Set(report.skipped ? kNone : report.loss);
  train_gradient_norm->Set(report.skipped ? kNone : report.gradient_norm);
  train_learning_rate->Set(progress.learning_rate);
  train_tokens_per_second->Set(progress.tokens_per_second);
  train_dead_experts->Set(static_cast<double>(report.dead_experts));
  train_packing->Set(progress.packing);
  if (progress.packing_decided) train_packing_decisions->Increment();
}

void WorkerMetrics::ObserveSaved(const train::SavedStep& saved) {
  train_checkpoint_seconds->Observe(saved.seconds);
  train_checkpoint_wait_seconds->Increment(saved.waited_seconds);
  train_checkpoint_bytes->Increment(static_cast<double>(saved.bytes));
  train_checkpoint_time->Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
}

void WorkerMetrics::ObserveYield(absl::Duration yield, absl::Duration limit) {
  train_yield_seconds->Observe(absl::ToDoubleSeconds(yield));
  if (yield > limit) train_late_yields->Increment();
}

void WorkerMetrics::ObserveOpened(absl::Duration now, absl::Duration* reported) {
  train_slice_seconds->Increment(absl::ToDoubleSeconds(now - *reported));
  *reported = now;
}

void WorkerMetrics::ObserveStep(const batching::RankResult& result) {
  step_seconds->Observe(result.timings.total_seconds);
  attention_seconds->Observe(result.timings.attention_seconds);
  expert_seconds->Observe(result.timings.expert_seconds);
  exchange_seconds->Observe(result.timings.exchange_seconds);
  head_seconds->Observe(result.timings.head_seconds);
  rows->Increment(static_cast<double>(result.rows));
  cublas_refusals->Increment(static_cast<double>(ops::NumCublasRefusals()) - cublas_refusals->Value());
  expert_rows->Increment(static_cast<double>(result.expert_rows));
  rows_sent->Increment(static_cast<double>(result.rows_sent));
  rows_received->Increment(static_cast<double>(result.rows_received));
  placement_gather_seconds->Increment(result.timings.gather_seconds);
  placement_decide_seconds->Increment(result.timings.decide_seconds);
  placement_decide_cpu_seconds->Increment(result.timings.decide_cpu_seconds);
  placement_fine_tuned_layers->Increment(static_cast<double>(result.fine_tuned_layers));
}

}  // namespace switchyard::worker
