// The ranks of one unique id, and the matching of their operations.  Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nccl.h"

namespace nccl_emulation {

enum class OpKind { kSend, kRecv, kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast };

struct Op {
  OpKind kind;
  const void* from;
  void* to;
  size_t count;
  ncclDataType_t type;
  int peer;  // of kSend and kRecv; the root of kReduce and kBroadcast; else -1
};

size_t TypeBytes(ncclDataType_t type);  // 0: not a type

// The operations that a launch waits for.
struct Waiting {
  size_t open = 0;  // guarded by the world's lock
};

class World {
 public:
  explicit World(int num_ranks) : num_ranks_(num_ranks), devices_(static_cast<size_t>(num_ranks), kAbsent) {}

  // The world of an id, made at the first call; null if an earlier call gave another number of ranks.
  static std::shared_ptr<World> Of(const std::string& id, int num_ranks);

  // False: the rank is taken, or another rank is on the device.
  bool Join(int rank, int device);
  bool Complete();
  // Drops the rank's posted operations.  Its communicator has ended.
  void Leave(int rank);
  bool SomeoneLeft();

  // Posts the operations for the other ranks, and carries out those that are then complete.
  std::shared_ptr<Waiting> Post(int rank, const std::vector<Op>& ops);
  bool Done(const Waiting& waiting);

 private:
  static constexpr int kAbsent = -1;

  struct Posted {
    Op op;
    std::shared_ptr<Waiting> waiting;
  };
  struct Channel {
    std::deque<Posted> sends, recvs;
  };
  using Slot = std::map<int, Posted>;  // by rank

  // REQUIRES (all): mu_ is held.
  void Match(Channel* channel);
  void Match(Slot* slot);
  void CarryOut(Slot* slot);

  const int num_ranks_;
  std::mutex mu_;
  std::vector<int> devices_;  // [R]
  bool left_ = false;
  std::map<std::pair<int, int>, Channel> channels_;  // by source and destination
  std::map<int64_t, Slot> slots_;                    // collectives, by number
  std::map<int, int64_t> next_slot_;                 // by rank
};

}  // namespace nccl_emulation
