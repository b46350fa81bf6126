#include "server/balancer/placement_cost_monitor.h"

#include <algorithm>
#include <cmath>

namespace switchyard::server {
namespace {

// Speeds of a host's memory and of one core; workers assume the same for an expert budget.
constexpr double kMemoryBytesPerSecond = 10e9;
constexpr double kFlopPerSecond = 50e9;
constexpr double kFlopPerByte = 1;  // of a row with an expert's weights in bf16: two operations per weight of two bytes

// Rows of an expert, on average over a step, up to which the reading of its weights bounds it, and from which on its
// products do.
constexpr double kFewRows = 2, kManyRows = 64;

constexpr double kLongestStep = 1e5;     // seconds
constexpr double kMostExchanged = 1e12;  // rows of a step

// Returns a worker's figure, or 0 if it is impossible.
double Possible(double seconds) { return seconds >= 0 && seconds < kLongestStep ? seconds : 0; }

}  // namespace

PlacementCostMonitor::PlacementCostMonitor(int64_t expert_bytes, double copy_bytes_per_second)
    : expert_bytes_(expert_bytes), link_bytes_per_second_(std::max(copy_bytes_per_second, 0.0)) {}

bool PlacementCostMonitor::Add(const batching::StepResult& step) {
  double exchange = kLongestStep, exchanged = 0;
  bool counted = false;
  for (const batching::RankResult& rank : step.ranks) {
    // The exchange's time is the rank's that waited least; the work is the busiest rank's.
    exchange = std::min(exchange, Possible(rank.timings.exchange_seconds));
    exchanged = std::max(exchanged, static_cast<double>(std::max<int64_t>(rank.rows_received, 0)));
    counted |= AddExperts(rank);
  }
  num_ranks_ = static_cast<int>(step.ranks.size());
  counted |= exchange > 0 || exchanged > 0;
  if (num_ranks_ > 1 && counted && exchanged < kMostExchanged) exchange_.Add(exchanged, exchange);
  return counted;
}

bool PlacementCostMonitor::AddExperts(const batching::RankResult& rank) {
  if (rank.expert_rows <= 0) return false;
  const auto rows = static_cast<double>(rank.expert_rows), read = static_cast<double>(rank.experts_read);
  const double routed = Possible(rank.timings.routed_seconds);
  const double seconds = routed > 0 ? routed : Possible(rank.timings.expert_seconds);
  if (seconds <= 0) return false;
  // A device does not tell how many experts got rows.
  if (read <= 0 || rows >= kManyRows * read) {
    many_.seconds += seconds;
    many_.number += rows;
    return true;
  }
  const bool few = rows <= kFewRows * read;
  Sum& sum = few ? few_ : some_;
  sum.seconds += seconds;
  sum.number += few ? read : rows;
  return true;
}

void PlacementCostMonitor::Fade() {
  for (Sum* sum : {&many_, &some_, &few_}) *sum = {sum->seconds / 2, sum->number / 2};
  exchange_.Fade();
  // What is known of copies stays known where none are made.
  if (copied_.bytes >= 2 * kMeasurableBytes) copied_ = {copied_.bytes / 2, copied_.seconds / 2};
}

void PlacementCostMonitor::NoteCopies(int rank, int64_t bytes, double seconds) {
  if (copies_.size() <= static_cast<size_t>(rank)) copies_.resize(static_cast<size_t>(rank) + 1);
  Copies& reported = copies_[static_cast<size_t>(rank)];
  // The rank has new slots, which count from 0 again.
  if (bytes < reported.bytes || seconds < reported.seconds) reported = {};
  copied_.bytes += bytes - reported.bytes;
  copied_.seconds += seconds - reported.seconds;
  reported = {bytes, seconds};
}

double PlacementCostMonitor::copy_seconds() const {
  const bool measured = copied_.bytes >= kMeasurableBytes && copied_.seconds > 0;
  const double memory = measured ? static_cast<double>(copied_.bytes) / copied_.seconds : kMemoryBytesPerSecond;
  const double rate = link_bytes_per_second_ > 0 ? std::min(link_bytes_per_second_, memory) : memory;
  return static_cast<double>(expert_bytes_) / rate;
}

double PlacementCostMonitor::busiest_row_seconds() const {
  // A share (num_ranks - 1) / num_ranks of its rows comes from other ranks.
  return row_seconds() + exchange_row_seconds() * (num_ranks_ - 1) / num_ranks_;
}

double PlacementCostMonitor::row_seconds() const { return many_.number > 0 ? many_.each() : some_.each(); }

double PlacementCostMonitor::weights_seconds() const { return few_.each(); }

placement::ExpertCost PlacementCostMonitor::Expert() const {
  if (row_seconds() <= 0) return {};
  const double weights =
      few_.number > 0 ? weights_seconds() : static_cast<double>(expert_bytes_) / kMemoryBytesPerSecond;
  return {.weights_seconds = weights, .row_seconds = row_seconds()};
}

placement::LayerCosts PlacementCostMonitor::Costs() const {
  const double unmeasured = kFlopPerByte * static_cast<double>(expert_bytes_) / kFlopPerSecond;
  return {.copy_ps = placement::Picoseconds(copy_seconds()),
          .weights_ps = placement::Picoseconds(weights_seconds()),
          .row_ps = placement::Picoseconds(row_seconds() > 0 ? busiest_row_seconds() : unmeasured)};
}

}  // namespace switchyard::server
