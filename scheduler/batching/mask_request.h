// A mask that takes too long to be made at once: the scheduler asks for it, its caller has it made on another thread,
// and hands it in.  Values.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "scheduler/batching/sequence.h"
#include "scheduler/grammar/matcher.h"

namespace switchyard::batching {

// Of which output it is.
struct MaskKey {
  RequestId request = 0;
  int32_t choice = 0;
  int32_t output = 0;
};

struct MaskRequest {
  MaskKey key;
  grammar::MaskTask task;
  std::weak_ptr<const bool> wanted;  // expired: the sequence has ended, so nobody wants the mask.  Any thread
};

struct MaskAnswer {
  MaskKey key;
  absl::StatusOr<grammar::MaskPtr> mask;  // an error: it cannot be made
  int64_t work_left = 0;                  // of the task's
};

}  // namespace switchyard::batching
