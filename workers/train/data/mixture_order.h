// Which dataset each sample of a job is of, where datasets have weights.
//
// kMixtureSequences samples in a row have of each dataset its weight's part, rounded to whole samples by the largest
// remainders.  Within them a dataset's samples lie at equal distances, so that any run of samples is nearly mixed as
// the weights say.  The order repeats; it needs no state, so a job goes on anywhere and ranks agree.  Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::train {

class MixtureOrder {
 public:
  struct Sample {
    int32_t dataset = 0;
    int64_t index = 0;  // of the dataset's samples: 0, 1, 2 …
    bool operator==(const Sample&) const = default;
  };

  // REQUIRES: weights that jobs::Validate accepts.
  explicit MixtureOrder(absl::Span<const double> weights);

  // Of the sample-th sample of the job.
  Sample Of(int64_t sample) const;
  // Samples of the dataset in each kMixtureSequences of the job.
  int64_t quota(size_t dataset) const { return quotas_[dataset]; }

 private:
  std::vector<int64_t> quotas_;
  std::vector<Sample> period_;  // [kMixtureSequences]
};

}  // namespace switchyard::train
