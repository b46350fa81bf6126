// Statistics of a benchmark's samples, as a table and as JSON.  Pure.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "clients/cli/commands/bench_load.h"
#include "clients/cli/json_fwd.h"

namespace switchyard::cli {

// Statistics of one quantity, in seconds; all zero without values.
struct Distribution {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};
// Percentiles interpolate between the two nearest ranks.
Distribution Distribute(std::vector<double> values);

struct BenchReport {
  int num_ok = 0;
  std::map<std::string, int> errors;  // reason -> count
  double elapsed_seconds = 0;
  double requests_per_second = 0;                     // requests that finished
  double prompt_tokens_per_second = 0;                // prompts of requests that finished
  double output_tokens_per_second = 0;                // all tokens received, also of requests that failed later
  Distribution first_token, inter_token, end_to_end;  // of requests that finished
};
BenchReport MakeReport(const LoadResult& result);

void PrintReport(const BenchReport& report, std::ostream& out);
Json ReportJson(const BenchReport& report);

}  // namespace switchyard::cli
