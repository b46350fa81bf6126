#include "tests/e2e/metrics_page.h"

#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

// The name of the family that a sample belongs to: a histogram's samples have a suffix.
std::string FamilyOf(const std::string& sample, const Families& known) {
  if (known.contains(sample)) return sample;
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    absl::string_view stem = sample;
    if (absl::ConsumeSuffix(&stem, suffix) && known.contains(std::string(stem))) return std::string(stem);
  }
  return "";
}

std::vector<std::string> LinesOf(const std::string& page) {
  return absl::StrSplit(page, absl::ByAnyChar("\r\n"), absl::SkipEmpty());
}

}  // namespace

void PrintTo(const Family& family, std::ostream* out) {
  *out << family.type << " {" << family.labels << "} [" << family.buckets << "]";
}

Families Parse(const std::string& page) {
  Families out;
  std::map<std::string, std::set<std::string>> labels;
  std::map<std::string, std::map<double, std::string>> buckets;
  for (const std::string& line : LinesOf(page)) {
    if (line.rfind("# TYPE ", 0) == 0) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      EXPECT_FALSE(out.contains(words[2])) << words[2] << " twice";
      out[words[2]].type = words[3];
    }
    if (line[0] == '#') continue;
    const size_t brace = line.find_first_of("{ ");
    const std::string family = FamilyOf(line.substr(0, brace), out);
    EXPECT_NE(family, "") << "a sample of no family: " << line;
    if (line[brace] != '{') continue;
    const std::string inside = line.substr(brace + 1, line.find('}') - brace - 1);
    for (const absl::string_view label : absl::StrSplit(inside, ',')) {
      const std::vector<std::string> parts = absl::StrSplit(label, '=');
      double edge = 0;
      if (parts[0] != "le") {
        labels[family].insert(parts[0]);
      } else if (parts[1] != "\"+Inf\"" && absl::SimpleAtod(parts[1].substr(1, parts[1].size() - 2), &edge)) {
        buckets[family][edge] = absl::StrCat(edge);
      }
    }
  }
  for (auto& [name, family] : out) {
    family.labels = absl::StrJoin(labels[name], ",");
    family.buckets = absl::StrJoin(buckets[name], " ", [](std::string* out, const auto& edge) { *out += edge.second; });
  }
  std::erase_if(out, [](const auto& entry) { return entry.first.rfind("exposer_", 0) == 0; });
  return out;
}

double Value(const std::string& page, const std::string& begin) {
  double value = -1;
  for (const std::string& line : LinesOf(page)) {
    if (line.rfind(begin, 0) != 0) continue;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) << line;
  }
  return value;
}

bool HasLine(const std::string& page, const std::string& begin) { return Value(page, begin) != -1; }

}  // namespace switchyard
