// Threads that make tokens of blocks of lines; their number changes no output.  One user at a time.  The threads are
// nice: serving goes first.
#pragma once

#include <atomic>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/jobs/pack/block_reader.h"
#include "server/jobs/pack/document_encoder.h"

namespace switchyard::server {

// A block on its way.  `name` is the file's, for messages.
struct EncodeTask {
  std::string name;
  LineBlock block;
  int64_t max_line_bytes = 0;
  // Set when it is done: all tokens, or the first bad line, with ErrorInfo metadata file, line and byte.
  PackedTokens tokens = {};
  absl::Status status = {};
  bool done = false;
};

// Ignores blank lines, a byte order mark at the beginning of the file and carriage returns before newlines.
absl::Status EncodeBlock(const DocumentEncoder& encoder, const std::function<bool()>& cancelled, EncodeTask* task);

class EncoderPool {
 public:
  // Borrows the encoder.
  EncoderPool(const DocumentEncoder& encoder, int num_threads);
  // Gives up what is not done yet.
  ~EncoderPool();

  // The task stays the caller's and is the pool's to change until it is done, or the pool is gone.
  void Post(EncodeTask* task);
  // Whether it is done now.
  bool Wait(const EncodeTask* task, absl::Duration timeout);

 private:
  void Run();

  const DocumentEncoder& encoder_;
  std::atomic<bool> stopping_ = false;
  absl::Mutex mu_;
  std::deque<EncodeTask*> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;
};

}  // namespace switchyard::server
