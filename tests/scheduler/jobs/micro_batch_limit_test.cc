// A job is refused whose trainer would refuse the rows of its micro-batches.
#include <string>

#include "gtest/gtest.h"
#include "scheduler/jobs/job_spec.h"

namespace switchyard::jobs {
namespace {

std::string Wrong(int64_t batch_sequences, int64_t micro_batch_sequences) {
  return std::string(Validate({.architecture = "demo",
                               .datasets = {"text.jsonl"},
                               .steps = 100,
                               .sequence_length = 256,
                               .batch_sequences = batch_sequences,
                               .micro_batch_sequences = micro_batch_sequences,
                               .workers = 2})
                         .message());
}

TEST(MicroBatchLimitTest, IsOfTokensThatAWorkerComputesAtATime) {
  EXPECT_EQ(Wrong(8192, 0), "") << "4096 sequences of 256 tokens";
  EXPECT_EQ(Wrong(8194, 0),
            "micro_batch_sequences: 0 (0 = all of a worker's): 4097 sequences of 256 tokens, at most 1048576 tokens "
            "may be computed at a time");
  EXPECT_EQ(Wrong(1 << 20, 4096), "");
  EXPECT_EQ(Wrong(1 << 20, 8192),
            "micro_batch_sequences: 8192 (0 = all of a worker's): 8192 sequences of 256 tokens, at most 1048576 tokens "
            "may be computed at a time");
}

}  // namespace
}  // namespace switchyard::jobs
