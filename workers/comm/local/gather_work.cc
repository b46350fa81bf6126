#include "workers/comm/local/gather_work.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "scheduler/base/status_macros.h"

namespace switchyard::comm {
namespace {

class GatherWork : public OnceWork {
 public:
  GatherWork(Communicator* comm, const OpKey& key, absl::Time deadline, absl::Span<const char> mine)
      : comm_(comm), key_(key), deadline_(deadline), rounds_(GatherRounds(comm->world())) {
    received_.resize(static_cast<size_t>(comm->world()));
    held_.resize(static_cast<size_t>(comm->world()) * mine.size());
    std::copy(mine.begin(), mine.end(), held_.begin());
  }

  absl::Status StartRound(int round) {
    const GatherRound& now = rounds_[static_cast<size_t>(round)];
    Communicator::Exchange exchange = comm_->NewExchange(key_, deadline_);
    exchange.key.bytes = now.blocks * key_.bytes;
    exchange.round = round;
    exchange.out[After(now.distance)] = Blocks(0, now.blocks);
    exchange.send_to[After(now.distance)] = 1;
    exchange.recv_from[After(-now.distance)] = 1;
    if (round == 0) exchange.later.push_back(LaterRounds());
    ASSIGN_OR_RETURN(under_way_, comm_->StartExchange(std::move(exchange)));
    return absl::OkStatus();
  }

 private:
  // The rank `steps` after this one.
  size_t After(int steps) const {
    return static_cast<size_t>((comm_->rank() + steps + comm_->world()) % comm_->world());
  }

  Message Blocks(int first, int count) {
    Message message = comm_->NewMessage(count * key_.bytes);
    if (message.bytes() > 0) {
      std::memcpy(message.payload(), held_.data() + first * key_.bytes, static_cast<size_t>(message.bytes()));
    }
    return message;
  }

  Communicator::LaterFrames LaterRounds() const {
    const auto world = static_cast<size_t>(comm_->world());
    Communicator::LaterFrames later{key_.sequence, std::vector<uint8_t>(world, 0)};
    for (size_t round = 1; round < rounds_.size(); ++round) {
      later.recv_from[After(-rounds_[round].distance)] = 1;
    }
    return later;
  }

  absl::Status Finish() override {
    for (int round = 0; round < static_cast<int>(rounds_.size()); ++round) {
      const GatherRound& now = rounds_[static_cast<size_t>(round)];
      if (round > 0) RETURN_IF_ERROR(StartRound(round));
      RETURN_IF_ERROR(under_way_->Wait());
      // (The communicator has checked that messages have the bytes of the round's key.)
      const Message& blocks = under_way_->received()[After(-now.distance)];
      std::copy(blocks.span().begin(), blocks.span().end(), held_.begin() + now.distance * key_.bytes);
    }
    under_way_.reset();
    for (int i = 0; i < comm_->world(); ++i) received_[After(-i)] = Blocks(i, 1);
    return absl::OkStatus();
  }

  Communicator* const comm_;
  const OpKey key_;
  const absl::Time deadline_;
  const std::vector<GatherRound> rounds_;
  std::vector<char> held_;  // [R] blocks: block i is of the rank i before this one
  std::unique_ptr<Work> under_way_;
};

}  // namespace

bool GathersInRounds(const OpKey& key, int world) {
  return key.bytes <= kSmallGatherBytes && world >= kMinGatherWorld && key.comm_class != CommClass::kControl;
}

std::vector<GatherRound> GatherRounds(int world) {
  std::vector<GatherRound> rounds;
  for (int distance = 1; distance < world; distance *= 2) {
    rounds.push_back({distance, std::min(distance, world - distance)});
  }
  return rounds;
}

WorkOr StartGather(Communicator* comm, const OpKey& key, absl::Time deadline, absl::Span<const char> mine) {
  auto work = std::make_unique<GatherWork>(comm, key, deadline, mine);
  RETURN_IF_ERROR(work->StartRound(0));
  return work;
}

}  // namespace switchyard::comm
