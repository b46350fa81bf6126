#include "scheduler/placement/route/split_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "scheduler/base/check.h"

namespace switchyard::placement {
namespace {

// 32nd powers: a device 10 % below the busiest counts a thirtieth of it.
double Power(double load) {
  for (int i = 0; i < 5; ++i) load *= load;
  return load;
}

}  // namespace

SplitCases::SplitCases(const Placement& placement, std::shared_ptr<const CaseRows> rows)
    : rows_(std::move(rows)), num_devices_(placement.num_devices()), begin_(placement.num_experts + 1, 0) {
  std::vector<std::vector<int32_t>> hosts(placement.num_experts);
  ForEachReplica(placement, [&](int32_t device, int32_t expert) { hosts[expert].push_back(device); });
  const int cases = rows_->num_cases;
  loads_.assign(static_cast<size_t>(cases) * num_devices_, 0);
  for (int expert = 0; expert < placement.num_experts; ++expert) {
    SY_CHECK(!hosts[expert].empty());
    begin_[expert + 1] = begin_[expert] + static_cast<int32_t>(hosts[expert].size());
    for (const int32_t device : hosts[expert]) {
      device_.push_back(device);
      for (int c = 0; c < cases; ++c) {
        flow_.push_back(rows_->rows[expert * cases + c] / static_cast<double>(hosts[expert].size()));
        loads_[c * num_devices_ + device] += flow_.back();
      }
    }
  }
}

int SplitCases::Find(int expert, int device) const {
  for (int host = begin_[expert]; host < begin_[expert + 1]; ++host) {
    if (device_[host] == device) return host;
  }
  return -1;
}

void SplitCases::AddHost(int expert, int device) {
  SY_CHECK_LT(Find(expert, device), 0);
  const int at = begin_[expert + 1];
  device_.insert(device_.begin() + at, device);
  flow_.insert(flow_.begin() + static_cast<int64_t>(at) * rows_->num_cases, rows_->num_cases, 0.0);
  for (size_t later = expert + 1; later < begin_.size(); ++later) ++begin_[later];
}

void SplitCases::RemoveHost(int expert, int device) {
  const int host = Find(expert, device), cases = rows_->num_cases;
  SY_CHECK_GE(host, 0);
  SY_CHECK_GE(num_hosts(expert), 2);
  const int heir = host == begin_[expert] ? host + 1 : begin_[expert];
  for (int c = 0; c < cases; ++c) {
    const double flow = flow_[host * cases + c];
    flow_[heir * cases + c] += flow;
    loads_[c * num_devices_ + device] -= flow;
    loads_[c * num_devices_ + device_[heir]] += flow;
  }
  device_.erase(device_.begin() + host);
  flow_.erase(flow_.begin() + static_cast<int64_t>(host) * cases,
              flow_.begin() + static_cast<int64_t>(host + 1) * cases);
  for (size_t later = expert + 1; later < begin_.size(); ++later) --begin_[later];
}

double SplitCases::Fill(int expert, int c) {
  const int first = begin_[expert], last = begin_[expert + 1], cases = rows_->num_cases;
  double* loads = &loads_[static_cast<size_t>(c) * num_devices_];
  // The level that this expert's rows reach on top of the hosts' other rows: hosts above it take none.
  double level = std::numeric_limits<double>::max();
  for (int filled = last - first + 1;;) {
    double sum = rows_->rows[expert * cases + c];
    int count = 0;
    for (int host = first; host < last; ++host) {
      const double others = loads[device_[host]] - flow_[host * cases + c];
      if (others <= level) sum += others, ++count;
    }
    if (count >= filled || count == 0) break;  // 0: rounding, where all are level
    filled = count;
    level = sum / count;
  }
  double change = 0;
  for (int host = first; host < last; ++host) {
    double& flow = flow_[host * cases + c];
    const double now = std::max(0.0, level - (loads[device_[host]] - flow));
    change = std::max(change, std::abs(now - flow));
    loads[device_[host]] += now - flow;
    flow = now;
  }
  return change;
}

void SplitCases::Finalize(int rounds) {
  constexpr double kStill = 1e-4;  // of the mean load
  const int experts = static_cast<int>(begin_.size()) - 1;
  std::vector<int> replicated;
  for (int expert = 0; expert < experts; ++expert) {
    if (num_hosts(expert) > 1) replicated.push_back(expert);
  }
  for (int c = 0; c < rows_->num_cases; ++c) {
    for (int round = 0; round < rounds; ++round) {
      double change = 0;
      for (const int expert : replicated) change = std::max(change, Fill(expert, c));
      if (change < kStill) break;
    }
  }
}

double SplitCases::Busiest() const {
  double mean = 0;
  for (int c = 0; c < rows_->num_cases; ++c) {
    const auto loads = loads_.begin() + static_cast<int64_t>(c) * num_devices_;
    mean += rows_->weights[c] * *std::max_element(loads, loads + num_devices_);
  }
  return mean;
}

double SplitCases::Potential() const {
  double mean = 0;
  for (int c = 0; c < rows_->num_cases; ++c) {
    double sum = 0;
    for (int device = 0; device < num_devices_; ++device) sum += Power(loads_[c * num_devices_ + device]);
    mean += rows_->weights[c] * std::pow(sum, 1.0 / 32);
  }
  return mean;
}

std::vector<double> SplitCases::MeanLoads() const {
  std::vector<double> mean(num_devices_, 0);
  for (int c = 0; c < rows_->num_cases; ++c) {
    for (int device = 0; device < num_devices_; ++device) {
      mean[device] += rows_->weights[c] * loads_[c * num_devices_ + device];
    }
  }
  return mean;
}

std::vector<double> SplitCases::Pressures() const {
  std::vector<double> pressure(num_devices_, 0), powers(num_devices_);
  for (int c = 0; c < rows_->num_cases; ++c) {
    double sum = 0;
    for (int device = 0; device < num_devices_; ++device) {
      sum += powers[device] = Power(loads_[c * num_devices_ + device]);
    }
    for (int device = 0; device < num_devices_; ++device) pressure[device] += rows_->weights[c] * powers[device] / sum;
  }
  return pressure;
}

double SplitCases::Rows(int expert, int device) const {
  const int host = Find(expert, device);
  if (host < 0) return 0;
  double mean = 0;
  for (int c = 0; c < rows_->num_cases; ++c) mean += rows_->weights[c] * flow_[host * rows_->num_cases + c];
  return mean;
}

}  // namespace switchyard::placement
