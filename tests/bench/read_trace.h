// A benchmark's routing trace, from a file; one that cannot be read ends the benchmark with the reason.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "scheduler/popularity/trace/trace_file.h"

namespace switchyard::bench {

inline popularity::RoutingTrace ReadTraceOrExit(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::StatusOr<popularity::RoutingTrace> trace = popularity::ParseTrace(bytes);
  if (!trace.ok()) {
    fprintf(stderr, "%s: %s\n", path.c_str(), std::string(trace.status().message()).c_str());
    exit(2);
  }
  return *std::move(trace);
}

}  // namespace switchyard::bench
