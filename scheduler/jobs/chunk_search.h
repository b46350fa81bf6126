// Searches the number of chunks n in which steps are fastest, by trying: for each number of rows B of a micro-batch
// over all ranks.
//
// More rows want no fewer chunks, so that ranges of B with the same n are learned: for a new B outside of them only
// numbers between those of the neighbouring ranges are tried, both ends first, then from the better end on until one is
// no faster.  That finds the best n where the time over n has one minimum; else a local one.
//
// Source: MPMoE, Algorithm 1, corrected (scheduler/PAPERS.md): the key is B of all ranks, so that they search alike; a
// B inside a known range is answered; the ranges stay disjoint.  Pure; thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace switchyard::jobs {

class ChunkSearch {
 public:
  struct Answer {
    int32_t chunks = 1;
    bool found = false;  // else it is to be tried next
  };

  // REQUIRES: 1 <= least <= most.
  ChunkSearch(int32_t least, int32_t most);

  // rows: B >= 1.
  Answer Next(int64_t rows) const;
  // The time of steps with Next(rows).chunks.  REQUIRES: it was to be tried.
  void Record(int64_t rows, int64_t ns);

  // What was tried: ns by chunks; empty where a known range answered.
  std::map<int32_t, int64_t> Tried(int64_t rows) const;
  // Whether what was tried for these rows falls, then rises, over n.
  bool HasOneMinimum(int64_t rows) const;
  // Whether, as far as this search can see, n rises with B: false if for some B the best was an end that other numbers
  // of rows had set, where a fall would show.
  bool RisesWithRows() const;

 private:
  struct Range {
    int64_t from = 0, to = 0;  // of B, both included
  };
  struct Trial {
    int32_t least = 1, most = 1;  // to be tried
    std::map<int32_t, int64_t> ns = {};
    int32_t found = 0;  // 0: not yet
  };
  // The ends for a B in no range.
  Trial Begin(int64_t rows) const;
  static int32_t NextOf(const Trial& trial);  // 0: none
  static int32_t BestOf(const Trial& trial);
  void Learn(int64_t rows, int32_t chunks);

  const int32_t least_, most_;
  std::map<int32_t, Range> ranges_;  // by n, rising in both
  std::map<int64_t, Trial> trials_;  // by B
  bool rises_ = true;
};

}  // namespace switchyard::jobs
