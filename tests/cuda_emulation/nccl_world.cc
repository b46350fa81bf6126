#include "tests/cuda_emulation/nccl_world.h"

#include <algorithm>
#include <cstring>

#include "cuda_bf16.h"

namespace nccl_emulation {
namespace {

template <class Elem>
void SumInRankOrder(const std::vector<const void*>& from, size_t begin, size_t count, void* to) {
  std::vector<Elem> sum(static_cast<const Elem*>(from[0]) + begin, static_cast<const Elem*>(from[0]) + begin + count);
  for (size_t r = 1; r < from.size(); ++r) {
    for (size_t i = 0; i < count; ++i) sum[i] += static_cast<const Elem*>(from[r])[begin + i];
  }
  std::copy(sum.begin(), sum.end(), static_cast<Elem*>(to));
}

// In two halves, so that sums may be in place of what other sums read.
struct Sum {
  void* to;
  std::vector<char> bytes;
};

Sum SumOf(const std::vector<const void*>& from, size_t begin, size_t count, ncclDataType_t type, void* to) {
  Sum sum{to, std::vector<char>(count * TypeBytes(type))};
  if (count == 0) return sum;
  switch (type) {
    case ncclFloat32:
      SumInRankOrder<float>(from, begin, count, sum.bytes.data());
      break;
    case ncclFloat64:
      SumInRankOrder<double>(from, begin, count, sum.bytes.data());
      break;
    case ncclBfloat16:
      SumInRankOrder<__nv_bfloat16>(from, begin, count, sum.bytes.data());
      break;
    case ncclInt32:
      SumInRankOrder<int32_t>(from, begin, count, sum.bytes.data());
      break;
    default:
      SumInRankOrder<int64_t>(from, begin, count, sum.bytes.data());
      break;
  }
  return sum;
}

}  // namespace

size_t TypeBytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    case ncclNumTypes:
      break;
  }
  return 0;
}

std::shared_ptr<World> World::Of(const std::string& id, int num_ranks) {
  static std::mutex mu;
  static std::map<std::string, std::weak_ptr<World>> worlds;
  std::lock_guard lock(mu);
  std::shared_ptr<World> world = worlds[id].lock();
  if (world == nullptr) worlds[id] = world = std::make_shared<World>(num_ranks);
  return world->num_ranks_ == num_ranks ? world : nullptr;
}

bool World::Join(int rank, int device) {
  std::lock_guard lock(mu_);
  if (devices_[static_cast<size_t>(rank)] != kAbsent) return false;
  if (std::find(devices_.begin(), devices_.end(), device) != devices_.end()) return false;
  devices_[static_cast<size_t>(rank)] = device;
  return true;
}

bool World::Complete() {
  std::lock_guard lock(mu_);
  return std::find(devices_.begin(), devices_.end(), kAbsent) == devices_.end();
}

void World::Leave(int rank) {
  std::lock_guard lock(mu_);
  for (auto& [ends, channel] : channels_) {
    if (ends.first == rank) channel.sends.clear();
    if (ends.second == rank) channel.recvs.clear();
  }
  for (auto& [number, slot] : slots_) slot.erase(rank);
  left_ = true;
}

bool World::SomeoneLeft() {
  std::lock_guard lock(mu_);
  return left_;
}

std::shared_ptr<Waiting> World::Post(int rank, const std::vector<Op>& ops) {
  std::lock_guard lock(mu_);
  auto waiting = std::make_shared<Waiting>();
  waiting->open = ops.size();
  for (const Op& op : ops) {
    if (op.kind == OpKind::kSend) {
      Channel& channel = channels_[{rank, op.peer}];
      channel.sends.push_back({op, waiting});
      Match(&channel);
    } else if (op.kind == OpKind::kRecv) {
      Channel& channel = channels_[{op.peer, rank}];
      channel.recvs.push_back({op, waiting});
      Match(&channel);
    } else {
      const int64_t number = next_slot_[rank]++;
      slots_[number][rank] = {op, waiting};
      Match(&slots_[number]);
      if (slots_[number].empty()) slots_.erase(number);
    }
  }
  return waiting;
}

bool World::Done(const Waiting& waiting) {
  std::lock_guard lock(mu_);
  return waiting.open == 0;
}

// Sizes that differ: neither is ever done.
void World::Match(Channel* channel) {
  while (!channel->sends.empty() && !channel->recvs.empty()) {
    const Posted& send = channel->sends.front();
    const Posted& recv = channel->recvs.front();
    const size_t bytes = send.op.count * TypeBytes(send.op.type);
    if (bytes != recv.op.count * TypeBytes(recv.op.type)) return;
    if (bytes > 0) std::memmove(recv.op.to, send.op.from, bytes);
    --send.waiting->open;
    --recv.waiting->open;
    channel->sends.pop_front();
    channel->recvs.pop_front();
  }
}

void World::Match(Slot* slot) {
  if (slot->size() < static_cast<size_t>(num_ranks_)) return;
  const Op& first = slot->begin()->second.op;
  for (const auto& [rank, posted] : *slot) {
    const Op& op = posted.op;
    if (op.kind != first.kind || op.count != first.count || op.type != first.type || op.peer != first.peer) return;
  }
  CarryOut(slot);
  for (auto& [rank, posted] : *slot) --posted.waiting->open;
  slot->clear();
}

void World::CarryOut(Slot* slot) {
  const Op first = slot->begin()->second.op;
  const size_t bytes = first.count * TypeBytes(first.type);
  std::vector<const void*> from;
  for (const auto& [rank, posted] : *slot) from.push_back(posted.op.from);
  std::vector<Sum> results;
  for (const auto& [rank, posted] : *slot) {
    const Op& op = posted.op;
    switch (op.kind) {
      case OpKind::kAllReduce:
        results.push_back(SumOf(from, 0, op.count, op.type, op.to));
        break;
      case OpKind::kReduce:
        if (rank == op.peer) results.push_back(SumOf(from, 0, op.count, op.type, op.to));
        break;
      case OpKind::kReduceScatter:
        results.push_back(SumOf(from, static_cast<size_t>(rank) * op.count, op.count, op.type, op.to));
        break;
      case OpKind::kAllGather:
        for (size_t r = 0; r < from.size() && bytes > 0; ++r) {
          std::memmove(static_cast<char*>(op.to) + r * bytes, from[r], bytes);
        }
        break;
      case OpKind::kBroadcast:
        if (bytes > 0) std::memmove(op.to, from[static_cast<size_t>(op.peer)], bytes);
        break;
      case OpKind::kSend:
      case OpKind::kRecv:
        break;
    }
  }
  for (const Sum& sum : results) {
    if (!sum.bytes.empty()) std::memcpy(sum.to, sum.bytes.data(), sum.bytes.size());
  }
}

}  // namespace nccl_emulation
