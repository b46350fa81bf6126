// Collectives on parts: memory that all ranks lay out alike, of which each rank owns a part in one or more pieces.
//
// parts[r]: the pieces of rank r's part; the same numbers, sizes and dtypes on all ranks; contiguous, on the CPU.  Each
// is one exchange of its class, as an all-to-all (communicator.h has the rules and the errors).  Views must stay until
// Wait has returned, and not be touched.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "workers/comm/core/communicator.h"

namespace switchyard::comm {

using PartViews = std::vector<std::vector<TensorView>>;  // [R][pieces]

// A message of the pieces, one behind the other, and its values back into pieces.  REQUIRES: as above.
Message PackPieces(Communicator* comm, const std::vector<TensorView>& pieces);
// Internal, and the group ends: rank `rank` sent another number of bytes (ExpectBytes, which `what` is for).
absl::Status UnpackPieces(Communicator* comm, absl::string_view what, int rank, const Message& message,
                          const std::vector<TensorView>& pieces);

// Wait leaves Σ over ranks in parts[rank()]; the other parts keep their values.  Adds in rank order, so that elements
// have the bits that AllReduceSum gives them.  fp32, fp64, int64, or bf16, which is added in fp32.
// REQUIRES: parts.size() == world().
WorkOr ReduceScatterSum(Communicator* comm, const CommCall& call, const PartViews& parts);

// Wait leaves on every rank the values that parts[r] has on rank r at this call.  Any dtypes.
// REQUIRES: parts.size() == world().
WorkOr AllGatherParts(Communicator* comm, const CommCall& call, const PartViews& parts);

}  // namespace switchyard::comm
