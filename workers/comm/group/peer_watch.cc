#include "workers/comm/group/peer_watch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/await.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"

namespace switchyard::comm {
namespace {

constexpr size_t kTextBytes = 512;
constexpr absl::Duration kGlance = absl::Milliseconds(50);    // at who is missing
constexpr absl::Duration kSilence = absl::Milliseconds(250);  // longer than a live rank is quiet

struct WireKey {
  uint8_t op, comm_class;
  int16_t root;
  int32_t unused;
  int64_t sequence, bytes;
};

// One rank's message in a round; [R] send_bytes and [R] recv_bytes follow.
struct WireReport {
  int64_t launched, completed;
  WireKey last, pending;
  uint8_t ending;
  uint8_t is_sized;
  char text[kTextBytes];  // ends with a zero
};

WireKey ToWire(const OpKey& key) {
  return {static_cast<uint8_t>(key.op), static_cast<uint8_t>(key.comm_class), key.root, 0, key.sequence, key.bytes};
}
OpKey FromWire(const WireKey& key) {
  return {static_cast<CommOp>(key.op), static_cast<CommClass>(key.comm_class), key.sequence, key.bytes, key.root};
}

size_t WireBytes(int world) { return sizeof(WireReport) + 2 * sizeof(int64_t) * world; }

std::string Encode(const PeerReport& report, uint8_t ending, const std::string& text, int world) {
  WireReport wire = {};
  wire.launched = report.launched;
  wire.completed = report.completed;
  wire.last = ToWire(report.last);
  wire.pending = ToWire(report.pending);
  wire.ending = ending;
  wire.is_sized = report.send_bytes.empty() ? 0 : 1;
  std::memcpy(wire.text, text.data(), std::min(text.size(), kTextBytes - 1));
  std::string bytes(WireBytes(world), '\0');
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  if (wire.is_sized != 0) {
    char* const sizes = bytes.data() + sizeof(wire);
    std::memcpy(sizes, report.send_bytes.data(), sizeof(int64_t) * world);
    std::memcpy(sizes + sizeof(int64_t) * world, report.recv_bytes.data(), sizeof(int64_t) * world);
  }
  return bytes;
}

PeerReport Decode(const WireReport& wire, const char* sizes, int world) {
  PeerReport report{wire.launched, wire.completed, FromWire(wire.last), FromWire(wire.pending), {}, {}};
  if (wire.is_sized == 0) return report;
  report.send_bytes.resize(world);
  report.recv_bytes.resize(world);
  std::memcpy(report.send_bytes.data(), sizes, sizeof(int64_t) * world);
  std::memcpy(report.recv_bytes.data(), sizes + sizeof(int64_t) * world, sizeof(int64_t) * world);
  return report;
}

}  // namespace

PeerWatch::PeerWatch(std::unique_ptr<Communicator> comm, const PeerWatchOptions& options,
                     std::function<PeerReport()> report, std::function<void(const absl::Status&)> on_end)
    : comm_(std::move(comm)),
      options_(options),
      report_(std::move(report)),
      on_end_(std::move(on_end)),
      latest_(comm_->world()) {}

PeerWatch::~PeerWatch() { Stop(); }

void PeerWatch::Start() {
  thread_ = std::thread([this] { Run(); });
}

void PeerWatch::Stop() {
  if (!thread_.joinable()) return;
  Leave();
  thread_.join();
}

void PeerWatch::Fail(absl::string_view why) {
  absl::MutexLock lock(&mu_);
  if (ending_ != Ending::kNone) return;
  ending_ = Ending::kFailed;
  why_ = std::string(why.data(), why.size());
}

void PeerWatch::Leave() {
  {
    absl::MutexLock lock(&mu_);
    if (ending_ == Ending::kNone) ending_ = Ending::kLeft;
    if (AwaitUntil(&mu_, absl::Condition(&done_), MonotonicNow() + options_.last_words)) return;
  }
  // A peer does not answer.  The others see our connections close.
  comm_->Abort("it has left");
}

std::vector<PeerReport> PeerWatch::Latest() const {
  absl::MutexLock lock(&mu_);
  return latest_;
}

int PeerWatch::left() const {
  absl::MutexLock lock(&mu_);
  return left_;
}

bool PeerWatch::AwaitFresh(absl::Time deadline) const {
  absl::MutexLock lock(&mu_);
  // The round under way may have begun before this call; the one after it has not.
  const int64_t wanted = rounds_ + 2;
  const auto fresh = [&] {
    mu_.AssertReaderHeld();
    return rounds_ >= wanted || done_;
  };
  AwaitUntil(&mu_, absl::Condition(&fresh), deadline);
  return rounds_ >= wanted;
}

std::vector<int> PeerWatch::Silent(absl::Time deadline) const {
  absl::MutexLock lock(&mu_);
  // A peer may have sent its parts of the round under way and of the next one before this call.  That of the third it
  // sends once it has ours of the second, which we have not sent yet.
  const int64_t wanted = rounds_ + 3;
  const auto over = [&] {
    mu_.AssertReaderHeld();
    return rounds_ >= wanted || done_;
  };
  if (AwaitUntil(&mu_, absl::Condition(&over), deadline)) return {};
  if (MonotonicNow() - silent_since_ < kSilence) return {};
  return silent_;
}

void PeerWatch::Run() {
  while (Gather()) {
  }
  absl::MutexLock lock(&mu_);
  done_ = true;
}

bool PeerWatch::Gather() {
  Ending ending;
  std::string why;
  {
    absl::MutexLock lock(&mu_);
    const auto is_urgent = [this] {
      mu_.AssertReaderHeld();
      return ending_ != Ending::kNone;
    };
    if (comm_->rank() == 0) mu_.AwaitWithTimeout(absl::Condition(&is_urgent), options_.period);
    ending = ending_;
    why = why_;
  }
  const std::string mine = Encode(report_(), static_cast<uint8_t>(ending), why, comm_->world());
  WorkOr work = comm_->AllGather({.comm_class = CommClass::kControl, .deadline = MonotonicNow() + options_.timeout},
                                 absl::MakeConstSpan(mine.data(), mine.size()));
  if (work.ok()) AwaitAnswers(work->get());
  const absl::Status status = work.ok() ? (*work)->Wait() : work.status();
  if (!status.ok()) {
    absl::ReleasableMutexLock lock(&mu_);
    if (ending_ != Ending::kNone) return false;
    lock.Release();
    on_end_(absl::UnavailableError(absl::StrCat("a peer does not answer: ", std::string(status.message()))));
    return false;
  }
  return Read((*work)->received()) && ending == Ending::kNone;
}

void PeerWatch::AwaitAnswers(Work* work) {
  const absl::Time began = MonotonicNow();
  do {
    std::vector<int> missing = work->AwaitMessages(MonotonicNow() + kGlance);
    absl::MutexLock lock(&mu_);
    silent_ = std::move(missing);
    silent_since_ = began;
    if (silent_.empty()) return;
  } while (MonotonicNow() < began + options_.timeout);
}

bool PeerWatch::Read(const std::vector<Message>& received) {
  absl::Status end;
  {
    absl::MutexLock lock(&mu_);
    for (int r = comm_->world() - 1; r >= 0; --r) {  // the lowest rank's failure is kept
      WireReport wire;
      std::memcpy(&wire, received[r].payload(), sizeof(wire));
      latest_[r] = Decode(wire, received[r].payload() + sizeof(wire), comm_->world());
      if (r == comm_->rank()) continue;
      const auto ending = static_cast<Ending>(wire.ending);
      if (ending == Ending::kLeft) left_ = r;
      if (ending == Ending::kFailed) {
        wire.text[kTextBytes - 1] = '\0';
        end = absl::UnavailableError(absl::StrCat("rank ", r, " ended the group: ", wire.text));
      }
    }
    ++rounds_;
    if (end.ok()) return left_ < 0;
    if (ending_ != Ending::kNone) return false;
  }
  on_end_(end);
  return false;
}

}  // namespace switchyard::comm
