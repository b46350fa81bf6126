// A switchyard-server whose background balancer plans as DeepSeek's EPLB does, with devices renumbered so that the
// fewest experts move: the baseline `eplb` of serve_placement.py.
#include "server/balancer/pending_migration.h"
#include "tests/lab/placement/eplb_residency.h"

namespace switchyard {
namespace {

[[maybe_unused]] const bool set = [] {
  server::SetPlanner([](const placement::ResidencyProblem& problem) { return PlanEplbResidency(problem, true); });
  return true;
}();

}  // namespace
}  // namespace switchyard
