// Where the rows of one exchange of a host went, and where those came from that are here: what answers and gradients
// follow.  Plain data.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::moe {

struct HostRoutes {
  // (row of x(), slot of its expert) pairs that one rank has for this one.
  struct Incoming {
    int64_t first_row = 0;  // of x(): the rows that came from there, one after the other
    int64_t num_rows = 0;
    std::vector<int32_t> row;    // [pairs]
    std::vector<int32_t> slot;   // [pairs]
    std::vector<int32_t> y_row;  // [pairs] where the sort by expert put each
  };
  // The (row of a message, slot) pairs that this rank has for another, and the rows of that message.
  struct Outgoing {
    std::vector<int32_t> token;     // [rows]
    std::vector<int32_t> pair_row;  // [pairs] into token
    std::vector<int32_t> pair_slot;
  };

  int64_t num_rows = 0;            // of x(): this rank's, if an expert here wants any of them, then the others'
  std::vector<int32_t> rank_of;    // [T * K] who computes (t, k); -1 = dropped
  std::vector<int32_t> pair_of;    // [T * K] index among the pairs with that rank
  std::vector<Outgoing> outgoing;  // [R]
  std::vector<Incoming> incoming;  // [R], this rank's own among them
  std::vector<int64_t> back_rows;  // [R + 1] rows behind the outputs made here where each rank's answers come
  std::vector<int32_t> slot_row;   // [T * K] row among outputs made here and answers; -1 = dropped
};

}  // namespace switchyard::moe
