// A MoE layer as a program: two micro-batches, so that the rows of one travel while experts compute the other's.
#include <algorithm>
#include <iostream>

#include "absl/strings/str_join.h"
#include "scheduler/base/check.h"
#include "scheduler/pipeline/build_expert_parallel.h"

using namespace switchyard;
using pipeline::MicroOp;
using pipeline::MicroOpKind;

int main() {
  pipeline::MoeSchedule schedule = pipeline::BuildExpertParallel({.micro_batches = 2, .shared_expert = true});
  SY_CHECK_OK(pipeline::Validate(schedule));
  for (size_t i = 0; i < schedule.ops.size(); ++i) {
    const MicroOp& op = schedule.ops[i];
    std::cout << i << ": " << pipeline::MicroOpKindName(op.kind) << " of chunk " << op.chunk + 1 << "/" << op.num_chunks
              << (pipeline::IsCommunicating(op.kind) ? ", an all-to-all" : "") << ", after ["
              << absl::StrJoin(op.deps, " ") << "]\n";
  }

  // The second chunk's rows are sent before the first chunk's experts run.
  const auto find = [&](MicroOpKind kind, int chunk) {
    return std::find_if(schedule.ops.begin(), schedule.ops.end(),
                        [&](const MicroOp& op) { return op.kind == kind && op.chunk == chunk && op.num_chunks == 2; });
  };
  SY_CHECK(find(MicroOpKind::kDispatch, 1) < find(MicroOpKind::kExpert, 0));

  // Validate says what is wrong: here no op combines the outputs of the second chunk.
  schedule.ops.pop_back();
  const absl::Status broken = pipeline::Validate(schedule);
  std::cout << broken.message() << "\n";
  SY_CHECK(absl::IsInvalidArgument(broken));
}
