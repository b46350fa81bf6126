// A page of metrics as Prometheus sees it.
#pragma once

#include <map>
#include <ostream>
#include <string>

namespace switchyard {

struct Family {
  std::string type;
  std::string labels;   // names, but `le` and `quantile`
  std::string buckets;  // of a histogram, without +Inf
  bool operator==(const Family&) const = default;
};
using Families = std::map<std::string, Family>;

void PrintTo(const Family& family, std::ostream* out);

// Reads a page in Prometheus' text format.  Label values of ours have no comma and no quote.  What the library adds of
// itself (exposer_…) is left out.
Families Parse(const std::string& page);
// The samples' value; -1 when there is none that begins so.
double Value(const std::string& page, const std::string& begin);
bool HasLine(const std::string& page, const std::string& begin);

}  // namespace switchyard
