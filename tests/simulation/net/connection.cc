#include "tests/simulation/net/connection.h"

#include <algorithm>
#include <utility>

namespace switchyard::simulation {

void Connection::Attach(Side side, End* end) {
  if (gone_[side]) return;
  ends_[side] = end;
  Schedule(side);
}

void Connection::Send(Side from, std::string bytes) {
  if (gone_[from]) return;
  Push(from == kWorker ? kServer : kWorker, {.ready = {}, .bytes = std::move(bytes)});
}

void Connection::Close(Side from, const absl::Status& status) {
  if (gone_[from]) return;
  gone_[from] = true;
  toward_[from].clear();
  Push(from == kWorker ? kServer : kWorker, {.ready = {}, .bytes = "", .end = status});
}

void Connection::Break(const std::string& why) {
  for (const Side side : {kWorker, kServer}) {
    if (gone_[side]) continue;
    toward_[side].clear();
    Push(side, {.ready = {}, .bytes = "", .end = absl::UnavailableError(why)});
  }
}

void Connection::Abandon(Side side) {
  if (gone_[side]) return;
  const Side other = side == kWorker ? kServer : kWorker;
  if (world_.random().OneIn(3)) toward_[other].clear();
  Close(side, absl::UnavailableError("connection reset by peer"));
}

void Connection::Lapse(Side side) {
  if (gone_[side] || ends_[side] == nullptr) return;
  Close(side, absl::UnavailableError("connection reset by peer"));
  ends_[side]->OnEnd(absl::UnavailableError("keepalive watchdog timeout"));
}

void Connection::Push(Side to, Item item) {
  if (gone_[to]) return;
  item.ready = world_.now() + world_.random().Skewed(host_.least_latency, host_.most_latency);
  toward_[to].push_back(std::move(item));
  Schedule(to);
}

void Connection::Schedule(Side to) {
  if (scheduled_[to] || toward_[to].empty() || ends_[to] == nullptr) return;
  scheduled_[to] = true;
  world_.At(std::max(toward_[to].front().ready, host_.cut_until),
            [self = shared_from_this(), to] { self->Deliver(to); });
}

void Connection::Deliver(Side to) {
  scheduled_[to] = false;
  if (gone_[to] || toward_[to].empty()) return;
  if (!host_.is_cut(world_.now()) && toward_[to].front().ready <= world_.now()) {
    Item item = std::move(toward_[to].front());
    toward_[to].pop_front();
    if (item.end.has_value()) {
      gone_[to] = true;
      toward_[to].clear();
      ends_[to]->OnEnd(*item.end);
      return;
    }
    ends_[to]->OnBytes(std::move(item.bytes));
  }
  Schedule(to);
}

}  // namespace switchyard::simulation
