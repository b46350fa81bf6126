// Thread pool that tokenizes blocks of lines.  The output does not depend on the number of threads.  For one user at a
// time.  The threads have a low priority, as serving goes first.
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

// A block to encode.  `name`: the file's name in messages.
struct EncodeTask {
  std::string name;
  LineBlock block;
  int64_t max_line_bytes = 0;
  bool pairs = false;  // every line is a pair; else none may be
  // The result, once `done`: all tokens, or the first bad line's error, with ErrorInfo metadata file, line and byte.
  PackedTokens tokens = {};
  absl::Status status = {};
  bool done = false;
};

absl::Status EncodeBlock(const DocumentEncoder& encoder, const std::function<bool()>& cancelled, EncodeTask* task);

class EncoderPool {
 public:
  // Borrows the encoder.
  EncoderPool(const DocumentEncoder& encoder, int num_threads);
  // Abandons tasks that are not done.
  ~EncoderPool();

  // The caller owns the task and must not touch it until it is done or the pool is destroyed.
  void Post(EncodeTask* task);
  // Waits for the task; returns whether it is done.
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
