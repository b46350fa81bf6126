// Discrete events over ranks, links and copy engines: when each op of each rank begins and ends.
//
// A rank goes through its list as the workers' executor does (workers/moe/layer/schedule_executor.h): an op waits for
// those that it depends on; computing takes its time; a copy or a collective is started at its place and is over later,
// while the rank goes on.  A rank's copies follow each other, and so do its collectives of one queue (a communicator).
// A collective begins when all its members have come to it; after its latency its bytes move on all links that it uses
// at once, at one pace.
//
// Collectives that meet on a link share it: each gets the same bytes a second (on the link where it has most), times
// its class's weight, or less if another link holds it back; or the first class takes what it can use.  Where classes
// meet, even one that is held back, a link may carry less than alone.  Pure; no clock.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace switchyard::simulator {

enum class SimOpKind { kCompute, kCopy, kCollective };

struct SimOp {
  std::string name = {};
  SimOpKind kind = SimOpKind::kCompute;
  double seconds = 0;          // of kCompute, and of kCopy
  int collective = -1;         // of kCollective: which of SimInput::collectives
  std::vector<int> deps = {};  // earlier ops of its list
};

struct LinkUse {
  int link = 0;
  double bytes = 0;
};

// Has one op on each of its members' lists.
struct Collective {
  double latency = 0;              // seconds, before bytes move
  std::vector<LinkUse> uses = {};  // each link once, with > 0 bytes; none: it is over after its latency
  int queue = 0;                   // >= 0
  int traffic_class = 0;           // of TrafficRules::weights
};

struct TrafficRules {
  std::vector<double> weights = {1};  // by class; > 0
  bool strict = false;                // classes take the links in order, instead of by weights
  double efficiency = 1;              // (0, 1]: of a link's bandwidth, where classes meet
};

struct SimInput {
  std::vector<double> links = {};  // bytes a second
  std::vector<Collective> collectives = {};
  std::vector<std::vector<SimOp>> ranks = {};
  TrafficRules rules = {};
};

struct SimInterval {
  double begin = 0, end = 0;  // seconds; of a collective from when its bytes may move, its latency included
};

struct SimResult {
  double seconds = 0;                              // until the last op is over
  std::vector<std::vector<SimInterval>> ops = {};  // by rank, as SimInput::ranks
};

// InvalidArgument: an op, collective or rule that is none; ops that wait for each other (which, of which rank).
absl::StatusOr<SimResult> Simulate(const SimInput& input);

}  // namespace switchyard::simulator
