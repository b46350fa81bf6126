#include "workers/moe/experts/direct_reader.h"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/unique_fd.h"

namespace switchyard::moe {
namespace {

struct File {
  UniqueFd fd;
  std::string name;

  // Counts what has come.  result: bytes, or -errno.
  absl::Status Count(const DirectRead& read, int64_t result, int64_t* done) const {
    const std::string what =
        absl::StrCat(name, ": cannot read bytes [", read.offset, ", ", read.offset + read.bytes, "): ");
    if (result == -EIO) return absl::DataLossError(absl::StrCat(what, std::strerror(EIO)));
    if (result < 0) return absl::ErrnoToStatus(static_cast<int>(-result), what);
    // What is not a whole number of blocks is read again, unless nothing else comes: that is the end of the file.
    const int64_t now = (*done + result) / kDirectAlignment * kDirectAlignment;
    if (now > *done) {
      *done = now;
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(what, "the file ends at byte ", read.offset + *done + result));
  }
};

// Whether the first block can be read past the page cache: some file systems take the flag when a file is opened and
// refuse to read.
bool ReadsDirectly(int fd) {
  alignas(kDirectAlignment) static thread_local char block[kDirectAlignment];
  return pread(fd, block, sizeof(block), 0) >= 0 || errno != EINVAL;
}

// Whether this kernel's rings know the operation.
bool CanRead(io_uring* ring) {
  io_uring_probe* const probe = io_uring_get_probe_ring(ring);
  const bool known = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
  io_uring_free_probe(probe);
  return known;
}

class UringReader : public DirectReader {
 public:
  // ring: with room for `most`; has no pointers to itself.
  UringReader(File file, bool direct, int most, const io_uring& ring)
      : file_(std::move(file)), reads_(static_cast<size_t>(most)), ring_(ring) {
    direct_ = direct;
    for (size_t i = 0; i < reads_.size(); ++i) free_.push_back(i);
  }
  ~UringReader() override {
    while (free_.size() < reads_.size()) Await();
    io_uring_queue_exit(&ring_);
  }

  void Start(const DirectRead& read) override {
    SY_CHECK(!free_.empty());
    const size_t at = free_.back();
    free_.pop_back();
    reads_[at] = {read, 0};
    Submit(at);
  }
  Finished Await() override {
    for (;;) {
      io_uring_cqe* cqe = nullptr;
      int waited = 0;
      do {
        waited = io_uring_wait_cqe(&ring_, &cqe);
      } while (waited == -EINTR);
      SY_CHECK_EQ(waited, 0);
      const auto at = static_cast<size_t>(io_uring_cqe_get_data64(cqe));
      const int64_t result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      auto& [read, done] = reads_[at];
      if (result == -EINTR || result == -EAGAIN) {
        Submit(at);
        continue;
      }
      const absl::Status status = file_.Count(read, result, &done);
      if (status.ok() && done < read.bytes) {
        Submit(at);
        continue;
      }
      free_.push_back(at);
      return {read.tag, status};
    }
  }
  const char* method() const override { return "io_uring"; }

 private:
  void Submit(size_t at) {
    const auto& [read, done] = reads_[at];
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    SY_CHECK(sqe != nullptr);  // the ring has room for `most`
    io_uring_prep_read(sqe, file_.fd.get(), read.to + done, static_cast<unsigned>(read.bytes - done),
                       static_cast<uint64_t>(read.offset + done));
    io_uring_sqe_set_data64(sqe, at);
    int submitted = 0;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR || submitted == -EAGAIN);
    SY_CHECK_EQ(submitted, 1);
  }

  const File file_;
  std::vector<std::pair<DirectRead, int64_t>> reads_;  // and how many bytes of each are there
  std::vector<size_t> free_;
  io_uring ring_;
};

class ThreadedReader : public DirectReader {
 public:
  ThreadedReader(File file, bool direct, int most) : file_(std::move(file)) {
    direct_ = direct;
    for (int i = 0; i < most; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~ThreadedReader() override {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Start(const DirectRead& read) override {
    absl::MutexLock lock(&mu_);
    waiting_.push_back(read);
  }
  Finished Await() override {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](std::deque<Finished>* over) { return !over->empty(); }, &over_));
    Finished finished = std::move(over_.front());
    over_.pop_front();
    return finished;
  }
  const char* method() const override { return "threads"; }

 private:
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stopping_ || !waiting_.empty(); }
  void Work() {
    absl::MutexLock lock(&mu_);
    for (;;) {
      mu_.Await(absl::Condition(this, &ThreadedReader::HasWork));
      if (stopping_) return;
      const DirectRead read = waiting_.front();
      waiting_.pop_front();
      mu_.Unlock();
      absl::Status status = Read(read);
      mu_.Lock();
      over_.push_back({read.tag, std::move(status)});
    }
  }
  absl::Status Read(const DirectRead& read) const {
    for (int64_t done = 0; done < read.bytes;) {
      const ssize_t result =
          pread(file_.fd.get(), read.to + done, static_cast<size_t>(read.bytes - done), read.offset + done);
      if (result < 0 && errno == EINTR) continue;
      absl::Status status = file_.Count(read, result < 0 ? -errno : result, &done);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const File file_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<DirectRead> waiting_ ABSL_GUARDED_BY(mu_);
  std::deque<Finished> over_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DirectReader>> DirectReader::Open(int fd, std::string name, int most,
                                                                 DirectMethod method) {
  SY_CHECK_GE(most, 1);
  // An open file of its own: the same one, whatever has its name by now.
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  bool direct = true;
  UniqueFd own(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (own.get() < 0 ? errno == EINVAL : !ReadsDirectly(own.get())) {
    direct = false;
    own = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  if (own.get() < 0) {
    return absl::UnavailableError(absl::StrCat(name, ": cannot open it for reading: ", std::strerror(errno)));
  }
  File file = {std::move(own), std::move(name)};
  if (method != DirectMethod::kThreads) {
    io_uring ring = {};
    int error = -io_uring_queue_init(static_cast<unsigned>(most), &ring, 0);
    if (error == 0 && CanRead(&ring)) return std::make_unique<UringReader>(std::move(file), direct, most, ring);
    if (error == 0) {
      io_uring_queue_exit(&ring);
      error = EOPNOTSUPP;
    }
    if (method == DirectMethod::kUring)
      return absl::UnavailableError(absl::StrCat(file.name, ": no io_uring here: ", std::strerror(error)));
  }
  return std::make_unique<ThreadedReader>(std::move(file), direct, most);
}

}  // namespace switchyard::moe
