#include "scheduler/simulator/cluster.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::simulator {
namespace {

constexpr int kMostRanks = 65536;

// Adds the traffic of a collective, link by link.
class Traffic {
 public:
  explicit Traffic(const Cluster& cluster)
      : cluster_(cluster), bytes_(2 * static_cast<size_t>(cluster.ranks + cluster.num_nodes())) {}

  void Send(int from, int to, double bytes) {
    if (from == to || bytes <= 0) return;
    const int ranks = cluster_.ranks, nodes = cluster_.num_nodes();
    const int here = cluster_.NodeOf(from), there = cluster_.NodeOf(to);
    any_ = true;
    At(from) += bytes;
    At(ranks + to) += bytes;
    if (here == there) return;
    outside_ = true;
    At(2 * ranks + here) += bytes;
    At(2 * ranks + nodes + there) += bytes;
  }

  // messages: that follow each other.
  Collective ToCollective(int messages) const {
    Collective collective;
    if (any_) collective.latency = messages * (outside_ ? cluster_.node_latency_s : cluster_.rank_latency_s);
    for (size_t link = 0; link < bytes_.size(); ++link) {
      if (bytes_[link] > 0) collective.uses.push_back({static_cast<int>(link), bytes_[link]});
    }
    return collective;
  }

 private:
  double& At(int link) { return bytes_[static_cast<size_t>(link)]; }

  const Cluster& cluster_;
  std::vector<double> bytes_;           // by link
  bool any_ = false, outside_ = false;  // outside: of a node
};

}  // namespace

absl::Status CheckCluster(const Cluster& cluster) {
  const auto wrong = [](absl::string_view name, double value, absl::string_view limit) {
    return absl::InvalidArgumentError(absl::StrCat("cluster: ", name, "=", value, ": must be ", limit));
  };
  if (cluster.ranks < 1 || cluster.ranks > kMostRanks)
    return wrong("ranks", cluster.ranks, absl::StrCat("within [1, ", kMostRanks, "]"));
  if (cluster.ranks_per_node < 1) return wrong("ranks_per_node", cluster.ranks_per_node, "at least 1");
  for (const auto& [name, value] : {std::pair{"rank_bytes_per_s", cluster.rank_bytes_per_s},
                                    {"node_bytes_per_s", cluster.node_bytes_per_s},
                                    {"flops", cluster.flops},
                                    {"copy_bytes_per_s", cluster.copy_bytes_per_s}}) {
    if (!(value > 0 && std::isfinite(value))) return wrong(name, value, "positive");
  }
  for (const auto& [name, value] :
       {std::pair{"rank_latency_s", cluster.rank_latency_s}, {"node_latency_s", cluster.node_latency_s}}) {
    if (!(value >= 0 && std::isfinite(value))) return wrong(name, value, "at least 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<Cluster> ParseCluster(absl::string_view text) {
  Cluster cluster;
  const std::map<absl::string_view, double*> fields = {{"rank_bytes_per_s", &cluster.rank_bytes_per_s},
                                                       {"node_bytes_per_s", &cluster.node_bytes_per_s},
                                                       {"rank_latency_s", &cluster.rank_latency_s},
                                                       {"node_latency_s", &cluster.node_latency_s},
                                                       {"flops", &cluster.flops},
                                                       {"copy_bytes_per_s", &cluster.copy_bytes_per_s}};
  const std::map<absl::string_view, int*> counts = {{"ranks", &cluster.ranks},
                                                    {"ranks_per_node", &cluster.ranks_per_node}};
  std::set<absl::string_view> given;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const auto wrong = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat("cluster file, line ", number, ": ", what...));
    };
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits('=', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(parts.first);
    const absl::string_view value = absl::StripAsciiWhitespace(parts.second);
    if (!given.insert(name).second) return wrong(name, " is given twice");
    if (name == "peers_apart") {
      if (!absl::SimpleAtob(value, &cluster.peers_apart)) return wrong(name, ": must be true or false: '", value, "'");
      continue;
    }
    const auto count = counts.find(name);
    const auto field = fields.find(name);
    if (count == counts.end() && field == fields.end()) return wrong("no field of a cluster: '", name, "'");
    const bool read =
        count != counts.end() ? absl::SimpleAtoi(value, count->second) : absl::SimpleAtod(value, field->second);
    if (!read) return wrong(name, ": no number: '", value, "'");
  }
  RETURN_IF_ERROR(CheckCluster(cluster));
  return cluster;
}

std::vector<double> LinksOf(const Cluster& cluster) {
  std::vector<double> links(2 * static_cast<size_t>(cluster.ranks), cluster.rank_bytes_per_s);
  links.resize(links.size() + 2 * static_cast<size_t>(cluster.num_nodes()), cluster.node_bytes_per_s);
  return links;
}

Collective AllToAll(const Cluster& cluster, const std::vector<int>& members,
                    absl::FunctionRef<double(int from, int to)> bytes) {
  const auto size = static_cast<int>(members.size());
  Traffic traffic(cluster);
  int most = 0;  // messages of a rank
  for (int from = 0; from < size; ++from) {
    int messages = 0;
    for (int to = 0; to < size; ++to) {
      const double sent = from == to ? 0 : bytes(from, to);
      if (sent <= 0) continue;
      ++messages;
      traffic.Send(members[static_cast<size_t>(from)], members[static_cast<size_t>(to)], sent);
    }
    most = std::max(most, messages);
  }
  return traffic.ToCollective(most);
}

Collective AllToAll(const Cluster& cluster, const std::vector<int>& members, double bytes_per_peer,
                    absl::FunctionRef<bool(int from, int to)> reaches) {
  return AllToAll(cluster, members, [&](int from, int to) { return reaches(from, to) ? bytes_per_peer : 0.0; });
}

Collective Ring(const Cluster& cluster, const std::vector<int>& members, double chunk_bytes, int rounds) {
  const size_t size = members.size();
  const auto turns = static_cast<int>(size) - 1;
  Traffic traffic(cluster);
  for (size_t i = 0; i < size; ++i) traffic.Send(members[i], members[(i + 1) % size], rounds * turns * chunk_bytes);
  return traffic.ToCollective(rounds * turns);
}

double SecondsAlone(const Cluster& cluster, const Collective& collective) {
  const std::vector<double> links = LinksOf(cluster);
  double seconds = 0;
  for (const LinkUse& use : collective.uses)
    seconds = std::max(seconds, use.bytes / links[static_cast<size_t>(use.link)]);
  return collective.latency + seconds;
}

}  // namespace switchyard::simulator
