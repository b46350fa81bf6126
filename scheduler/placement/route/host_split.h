// Which worker of a machine computes which rows, where the workers of a machine share its experts' weights: each rank
// decides about its own rows from their counts alone, without a message.
//
// A rank's rows for an expert are few or many.  Few cost the reading of the expert's weights before all, so that all
// ranks' go to one worker, the expert's owner, and the weights are read once.  Many cost their products, which take as
// long wherever they are: they stay on their rank.  Where the step gives a rank more rows than the machine's other
// workers have, it hands what exceeds the mean to those that have fewer: whole experts, those of the receiver first. So
// how popular experts are does not matter.  Rows for another machine's expert go to as many of its workers as get many.
// Pure, integers only.  Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/route/split.h"

namespace switchyard::placement {

struct HostGroups {
  std::vector<int32_t> host_of;   // [R] ranks with the same number share weights
  std::vector<int32_t> owner_of;  // [E] a rank; every rank of its host has the expert

  int num_ranks() const { return static_cast<int>(host_of.size()); }
  int num_experts() const { return static_cast<int>(owner_of.size()); }
  int32_t HostOf(int expert) const { return host_of[static_cast<size_t>(owner_of[static_cast<size_t>(expert)])]; }
};

class HostSplit {
 public:
  // many_rows: rows of one expert from which reading its weights once more hardly matters beside their products; at
  // least 1.
  HostSplit(int rank, HostGroups groups, int32_t many_rows);

  // A step begins.  rank_rows [R]: tokens that each rank computes, empty: not known.  REQUIRES: none is negative.
  void Begin(absl::Span<const int32_t> rank_rows);
  // counts [E]: this rank's rows of a layer.  The table has this rank's pieces alone.
  SplitTable Split(absl::Span<const int32_t> counts);

  const HostGroups& groups() const { return groups_; }

 private:
  struct Quota {
    int32_t device = 0;
    int64_t share = 0;  // of this rank's rows, in parts of shares_
    int64_t rows = 0;   // that it still takes in this layer
  };

  void TakeQuotas(absl::Span<const int32_t> counts);
  bool IsMany(int expert, int32_t rows) const {
    return is_here_[static_cast<size_t>(expert)] != 0 && rows >= many_rows_;
  }
  void PlaceHere(absl::Span<const int32_t> counts);
  void PlaceElsewhere(int expert, int32_t rows);
  void Put(int expert, int32_t device, int64_t rows);

  const int rank_;
  const HostGroups groups_;
  const int32_t many_rows_;
  std::vector<uint8_t> is_here_;             // [E] on this rank's host
  std::vector<std::vector<int32_t>> hosts_;  // the ranks of each host, by number
  std::vector<Quota> quotas_;                // of this host's ranks, rising
  int64_t shares_ = 1;
  std::vector<std::vector<SplitPiece>> pieces_;  // [E] scratch
};

}  // namespace switchyard::placement
