#include "server/engine/stop_strings.h"

#include <utility>

namespace switchyard::server {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    std::vector<uint32_t>& borders = borders_.emplace_back(stop.size(), 0);
    uint32_t border = 0;
    for (size_t k = 1; k < stop.size(); ++k) {
      while (border > 0 && stop[border] != stop[k]) border = borders[border - 1];
      if (stop[border] == stop[k]) ++border;
      borders[k] = border;
    }
  }
}

size_t StopStrings::Find(size_t i, absl::string_view text, size_t* matched) const {
  const std::string& stop = stops_[i];
  size_t length = *matched;
  size_t end = absl::string_view::npos;
  for (size_t at = 0; at < text.size() && end == absl::string_view::npos; ++at) {
    while (length > 0 && stop[length] != text[at]) length = borders_[i][length - 1];
    if (stop[length] == text[at]) ++length;
    if (length == stop.size()) end = at + 1;
  }
  *matched = length;
  return end;
}

}  // namespace switchyard::server
