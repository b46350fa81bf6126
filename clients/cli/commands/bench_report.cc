#include "clients/cli/commands/bench_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"
#include "clients/cli/json.h"

namespace switchyard::cli {
namespace {

// REQUIRES: sorted is not empty
double Percentile(const std::vector<double>& sorted, double share) {
  const double rank = share * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

void PrintRow(std::ostream& out, const char* name, const Distribution& row) {
  out << absl::StreamFormat("%-14s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, row.mean * 1e3, row.p50 * 1e3,
                            row.p90 * 1e3, row.p99 * 1e3, row.max * 1e3);
}

Json DistributionJson(const Distribution& row) {
  return {{"mean", row.mean}, {"p50", row.p50}, {"p90", row.p90}, {"p99", row.p99}, {"max", row.max}};
}

}  // namespace

Distribution Distribute(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          Percentile(values, 0.5), Percentile(values, 0.9), Percentile(values, 0.99), values.back()};
}

BenchReport MakeReport(const LoadResult& result) {
  BenchReport report;
  std::vector<double> first, gaps, total;
  int64_t prompt_tokens = 0, output_tokens = 0;
  for (const Sample& sample : result.samples) {
    output_tokens += sample.num_tokens;
    if (!sample.error.empty()) {
      ++report.errors[sample.error];
      continue;
    }
    ++report.num_ok;
    prompt_tokens += sample.num_prompt_tokens;
    first.push_back(absl::ToDoubleSeconds(sample.first_token));
    total.push_back(absl::ToDoubleSeconds(sample.total));
    gaps.insert(gaps.end(), sample.gap_seconds.begin(), sample.gap_seconds.end());
  }
  report.elapsed_seconds = absl::ToDoubleSeconds(result.elapsed);
  const double seconds = std::max(report.elapsed_seconds, 1e-9);
  report.requests_per_second = report.num_ok / seconds;
  report.prompt_tokens_per_second = static_cast<double>(prompt_tokens) / seconds;
  report.output_tokens_per_second = static_cast<double>(output_tokens) / seconds;
  report.first_token = Distribute(std::move(first));
  report.inter_token = Distribute(std::move(gaps));
  report.end_to_end = Distribute(std::move(total));
  return report;
}

void PrintReport(const BenchReport& report, std::ostream& out) {
  int failed = 0;
  for (const auto& [reason, count] : report.errors) failed += count;
  out << absl::StreamFormat("%d requests finished in %.2f s, %d failed\n", report.num_ok, report.elapsed_seconds,
                            failed);
  for (const auto& [reason, count] : report.errors) out << absl::StreamFormat("  %-20s %d\n", reason, count);
  out << absl::StreamFormat("%.2f requests/s, %.1f prompt tokens/s, %.1f output tokens/s\n", report.requests_per_second,
                            report.prompt_tokens_per_second, report.output_tokens_per_second);
  out << absl::StreamFormat("%-14s %10s %10s %10s %10s %10s\n", "milliseconds", "mean", "p50", "p90", "p99", "max");
  PrintRow(out, "first token", report.first_token);
  PrintRow(out, "inter-token", report.inter_token);
  PrintRow(out, "end to end", report.end_to_end);
  out.flush();
}

Json ReportJson(const BenchReport& report) {
  Json errors = Json::object();
  for (const auto& [reason, count] : report.errors) errors[reason] = count;
  return {{"requests_ok", report.num_ok},
          {"errors", errors},
          {"elapsed_seconds", report.elapsed_seconds},
          {"requests_per_second", report.requests_per_second},
          {"prompt_tokens_per_second", report.prompt_tokens_per_second},
          {"output_tokens_per_second", report.output_tokens_per_second},
          {"ttft_seconds", DistributionJson(report.first_token)},
          {"inter_token_seconds", DistributionJson(report.inter_token)},
          {"e2e_seconds", DistributionJson(report.end_to_end)}};
}

}  // namespace switchyard::cli
