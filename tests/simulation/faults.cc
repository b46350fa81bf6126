#include "tests/simulation/faults.h"

#include <algorithm>

namespace switchyard::simulation {
namespace {

// What befalls a worker.
enum : int64_t { kKill, kExit, kCrash, kOutOfMemory, kStop, kCut, kReset, kSlow };

}  // namespace

void Faults::Draw(int count, absl::Duration end) {
  absl::Duration at;
  for (int i = 0; i < count; ++i) {
    // One in three comes right after the one before it.
    const bool together = i > 0 && world_.random().OneIn(3);
    at = together ? at + world_.random().Skewed(absl::ZeroDuration(), absl::Milliseconds(100))
                  : world_.random().Between(absl::ZeroDuration(), end);
    world_.After(at, [this] { Strike(); });
  }
}

void Faults::OnForming() {
  if (forming_ == 0 || world_.random().OneIn(3)) return;
  --forming_;
  world_.After(world_.random().Skewed(absl::ZeroDuration(), absl::Milliseconds(300)), [this] { Strike(); });
}

void Faults::Strike() {
  if (healed_) return;
  if (server_.has_jobs() && world_.random().OneIn(5)) {
    StrikeDisk();
  } else if (world_.random().OneIn(4)) {
    StrikeServer();
  } else {
    StrikeWorker(world_.random().Pick(workers_));
  }
}

// How many losses of the group the server may take for the work of a request when this kind befalls this worker.
int Faults::MostSuspicious(int64_t kind, absl::Duration time, const WorkerProcess& worker) const {
  if (!worker.alive()) return 0;
  if (kind == kOutOfMemory) return 1;  // a trainer's too: the kernel counts all, so another's kill looks like it
  if (!worker.role().empty()) return 0;
  // Of the end of a process elsewhere the server sees only that of its link.
  if (kind < kOutOfMemory && worker.local()) return kind == kCrash ? 1 : 0;
  // One that is slow for long is too late for a step again and again.
  return kind == kSlow ? 1 + static_cast<int>(time / step_timeout_) : 1;
}

void Faults::StrikeWorker(WorkerProcess* worker) {
  Random& random = world_.random();
  const absl::Duration time = random.Skewed(absl::Milliseconds(20), absl::Seconds(5));
  const int64_t kind = random.Below(kSlow + 1);
  suspicious_ += MostSuspicious(kind, time, *worker);
  switch (kind) {
    case kKill:
      worker->Die("signal 9 (Killed)");
      break;
    case kExit:
      worker->Die("exit code 0");
      break;
    case kCrash:
      worker->Die("signal 11 (Segmentation fault)");
      break;
    case kOutOfMemory:
      world_.Note(worker->name(), ": memory runs out");
      if (worker->alive()) ++server_.oom_kills;
      worker->Die("signal 9 (Killed)");
      break;
    case kStop:
      StopFor(worker, time);
      break;
    case kCut:
      world_.Note(worker->name(), ": is cut off for ", absl::ToInt64Milliseconds(time), " ms");
      worker->host().Cut(world_.now(), time);
      break;
    case kReset:
      world_.Note(worker->name(), ": its link is reset");
      worker->BreakLink("connection reset by peer");
      break;
    default: {
      const int slowness = random.OneIn(4) ? 50000 : static_cast<int>(random.Between(2, 200));
      world_.Note(worker->name(), ": is ", slowness, " times slower");
      worker->set_slowness(slowness);
      world_.After(time, [worker] { worker->set_slowness(1); });
      break;
    }
  }
}

void Faults::StrikeServer() {
  Random& random = world_.random();
  switch (random.Below(5)) {
    case 0:
      if (random.OneIn(2)) return LosePower();
      if (!server_.alive()) return;
      server_.Die("signal 9 (Killed)");
      server_.on_death(/*restart=*/true);
      break;
    case 1:
      server_.Terminate();
      break;
    default:
      StopFor(&server_, random.Skewed(absl::Milliseconds(50), absl::Seconds(4)));
      break;
  }
}

void Faults::LosePower() {
  disk_.set_state(MemoryDisk::State::kGood);
  if (!server_.alive()) return;
  world_.Note("server: the power goes");
  server_.LosePower();
  server_.Die("signal 9 (Killed)");
  server_.on_death(/*restart=*/true);
}

void Faults::StrikeDisk() {
  Random& random = world_.random();
  if (random.OneIn(4)) {
    world_.Note("server: its clock jumps");
    return server_.JumpClock(random.Between(-absl::Hours(1), absl::Hours(1)));
  }
  if (random.OneIn(3)) {
    world_.Note("server: the power goes at a later write");
    return disk_.BreakAt(random.Between(1, 12),
                         [this] { world_.After(absl::ZeroDuration(), [this] { LosePower(); }); });
  }
  const bool full = random.OneIn(2);
  world_.Note("server: its disk is ", full ? "full" : "broken");
  disk_.set_state(full ? MemoryDisk::State::kFull : MemoryDisk::State::kBroken);
  world_.After(random.Skewed(absl::Milliseconds(20), absl::Seconds(4)),
               [this] { disk_.set_state(MemoryDisk::State::kGood); });
}

void Faults::StopFor(Process* process, absl::Duration time) {
  if (!process->runs()) return;
  world_.Note("a process is stopped for ", absl::ToInt64Milliseconds(time), " ms");
  process->Stop();
  world_.After(time, [process, life = process->life()] {
    if (process->life() == life) process->Continue();
  });
}

void Faults::StartServer(absl::Duration pause) {
  world_.After(pause, [this] {
    if (!server_.alive()) server_.Boot();
  });
}

void Faults::Heal() {
  healed_ = true;
  world_.Note("the faults end");
  server_.Continue();
  disk_.BreakAt(0, nullptr);
  disk_.set_state(MemoryDisk::State::kGood);
  for (WorkerProcess* worker : workers_) {
    worker->Continue();
    worker->set_slowness(1);
    worker->host().cut_until = std::min(worker->host().cut_until, world_.now());
  }
}

}  // namespace switchyard::simulation
