// The order in which a job sees the windows of its data: a permutation of all of them for each epoch, which needs no
// memory and is computed for any place, so that a job goes on anywhere and ranks agree.
//
// The permutation is a Feistel network of six rounds over the smallest even number of bits that counts the windows,
// walked until it falls among them (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).  Pure.
#pragma once

#include <cstdint>

namespace switchyard::jobs {

class WindowOrder {
 public:
  // REQUIRES: num_windows >= 1.
  WindowOrder(uint64_t seed, int64_t num_windows);

  // The window of the sample-th sample of the job, 0, 1, 2 …: each epoch of num_windows samples has every window once.
  int64_t WindowOf(int64_t sample) const;
  int64_t EpochOf(int64_t sample) const { return sample / num_windows_; }

 private:
  const uint64_t seed_;
  const int64_t num_windows_;
  int half_bits_ = 1;
};

}  // namespace switchyard::jobs
