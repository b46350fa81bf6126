// A MoE layer as a program: two micro-batches, so that the rows of one travel while experts compute the other's.
#include <algorithm>
#include <iostream>

#include "scheduler/base/check.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "scheduler/pipeline/schedule_timeline.h"

using namespace switchyard;
using pipeline::MicroOp;
using pipeline::MicroOpKind;

int main() {
  pipeline::MoeSchedule schedule =
      pipeline::BuildExpertParallel({.micro_batches = 2, .shared_expert = true, .trains = true});
  SY_CHECK_OK(pipeline::Validate(schedule));
  // Dispatch S, experts C, combine R of chunks 0 and 1; gate G, shared expert H; W' the gradients of weights.
  std::cout << "forward\n"
            << pipeline::Timeline(schedule.forward) << "backward\n"
            << pipeline::Timeline(schedule.backward);

  // The second chunk's rows are sent before the first chunk's experts run.
  const auto find = [&](MicroOpKind kind, int chunk) {
    return std::find_if(schedule.forward.begin(), schedule.forward.end(),
                        [&](const MicroOp& op) { return op.kind == kind && op.chunk == chunk && op.num_chunks == 2; });
  };
  SY_CHECK(find(MicroOpKind::kDispatch, 1) < find(MicroOpKind::kExpert, 0));

  // Validate says what is wrong: here experts may run before their rows have come.
  find(MicroOpKind::kExpert, 1)->deps.clear();
  const absl::Status broken = pipeline::Validate(schedule);
  std::cout << broken.message() << "\n";
  SY_CHECK(absl::IsInvalidArgument(broken));
}
