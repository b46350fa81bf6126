// The disk beneath the journal of jobs: a SQLite VFS in memory on which writes and syncs may fail, processes may end,
// and the power may go.
//
// What a process wrote outlives the process, but what was not synced may be lost with the power: any part of it, each
// write whole, cut at a sector, or not at all.  A sync that has failed leaves its writes readable, and no later sync
// makes them durable, as on Linux.  Files and their deletion are durable at once.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/core/world.h"

namespace switchyard::simulation {

class MemoryDisk {
 public:
  enum class State { kGood, kFull, kBroken };

  // The VFS of all SQLite handles that are opened while it lives.  One at a time.
  explicit MemoryDisk(World* world);
  ~MemoryDisk();

  void set_state(State state) { state_ = state; }
  State state() const { return state_; }
  // The `count`-th write, cut or sync from now on fails; `broke` is called inside of it, and the disk is broken.
  void BreakAt(int64_t count, std::function<void()> broke) {
    calls_left_ = count;
    broke_ = std::move(broke);
  }
  // The process that had files open has ended: what is left of it writes nothing.
  void EndProcess() { ++process_; }
  // REQUIRES: EndProcess.
  void LosePower();

 private:
  friend struct DiskCalls;
  struct Write {
    int64_t offset = 0;
    std::string data;
    bool cuts = false;   // the file ends at `offset` from now on
    bool void_ = false;  // a sync of it has failed
  };
  struct File {
    std::string durable, cached;
    std::vector<Write> unsynced;
  };
  void Count();
  static void Apply(const Write& write, std::string* content);
  int WriteTo(File* file, const void* data, int size, int64_t offset);
  int Cut(File* file, int64_t size);
  int Sync(File* file);

  World& world_;
  std::map<std::string, std::unique_ptr<File>> files_;
  State state_ = State::kGood;
  uint64_t process_ = 0;
  int64_t calls_left_ = 0;  // until it breaks; 0: it does not
  std::function<void()> broke_;
};

}  // namespace switchyard::simulation
