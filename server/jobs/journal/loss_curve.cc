#include "server/jobs/journal/loss_curve.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr int64_t kWholeBytes = 256 << 10;  // a file up to this size is read whole
constexpr int64_t kWindowBytes = 1024;      // a row is shorter than half of it

std::optional<LossPoint> ParseRow(absl::string_view row) {
  LossPoint point;
  const size_t comma = row.find(',');
  if (comma == absl::string_view::npos || !absl::SimpleAtoi(row.substr(0, comma), &point.step)) return std::nullopt;
  const absl::string_view rest = row.substr(comma + 1);
  if (!absl::SimpleAtod(rest.substr(0, rest.find(',')), &point.loss)) return std::nullopt;
  return point;
}

std::string ReadAt(int fd, int64_t offset, int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  const ssize_t got = pread(fd, bytes.data(), bytes.size(), offset);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

// Adds the whole rows of `bytes`, at most `most`; what is before the first line end is none.
void AddRows(absl::string_view bytes, size_t most, std::vector<LossPoint>* points) {
  size_t added = 0;
  for (size_t begin = bytes.find('\n'); begin != absl::string_view::npos && added < most;) {
    const size_t end = bytes.find('\n', begin + 1);
    if (end == absl::string_view::npos) return;
    const std::optional<LossPoint> point = ParseRow(bytes.substr(begin + 1, end - begin - 1));
    if (point.has_value() && (points->empty() || point->step > points->back().step)) {
      points->push_back(*point);
      ++added;
    }
    begin = end;
  }
}

}  // namespace

absl::StatusOr<std::vector<LossPoint>> ReadLossCurve(const RootDir& root, const std::string& name, int most) {
  const absl::StatusOr<int> opened = root.OpenFile(name);
  if (absl::IsNotFound(opened.status())) return std::vector<LossPoint>();
  RETURN_IF_ERROR(opened.status());
  const UniqueFd fd(*opened);
  struct stat file = {};
  if (fstat(fd.get(), &file) != 0) return absl::InternalError(name + ": cannot be read");
  std::vector<LossPoint> points;
  const auto count = static_cast<size_t>(most);
  if (file.st_size > kWholeBytes) {
    const int64_t last = file.st_size - kWindowBytes;
    for (size_t i = 0; i + 1 < count; ++i) {
      const int64_t at = last * static_cast<int64_t>(i) / static_cast<int64_t>(count - 1);
      AddRows(ReadAt(fd.get(), at, kWindowBytes), 1, &points);
    }
    std::vector<LossPoint> end;
    AddRows(ReadAt(fd.get(), last, kWindowBytes), SIZE_MAX, &end);
    if (!end.empty() && (points.empty() || end.back().step > points.back().step)) points.push_back(end.back());
    return points;
  }
  AddRows(ReadAt(fd.get(), 0, file.st_size), SIZE_MAX, &points);
  if (points.size() <= count) return points;
  std::vector<LossPoint> thinned;
  for (size_t i = 0; i < count; ++i) thinned.push_back(points[i * (points.size() - 1) / (count - 1)]);
  return thinned;
}

}  // namespace switchyard::server
