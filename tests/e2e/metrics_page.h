// Parser of a metrics page in Prometheus' text format.
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

// Parses a page.  Our label values contain no comma or quote.  Ignores the library's own metrics (exposer_…).
Families Parse(const std::string& page);
// Returns the value of the sample that begins so; -1 if there is none.
double Value(const std::string& page, const std::string& begin);
bool HasLine(const std::string& page, const std::string& begin);

}  // namespace switchyard
