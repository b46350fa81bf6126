#include "server/jobs/pack/encoder_pool.h"

#include <sys/resource.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::server {
namespace {

constexpr int kNice = 10;
constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

v1::ErrorReason ReasonOf(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) return v1::TEXT_LIMIT;
  if (absl::IsFailedPrecondition(status)) return v1::NO_CHAT_TEMPLATE;
  return v1::BAD_FILE;
}

absl::Status BadLine(const EncodeTask& task, int64_t line, int64_t byte, const absl::Status& status) {
  if (absl::IsCancelled(status)) return status;
  return rpc::MakeError(status.code(), ReasonOf(status), AtLine(task.name, line, byte, status.message()),
                        {{"file", task.name}, {"line", absl::StrCat(line)}, {"byte", absl::StrCat(byte)}});
}

absl::Status EncodeLine(const DocumentEncoder& encoder, absl::string_view line, const std::function<bool()>& cancelled,
                        EncodeTask* task) {
  if (line.size() > static_cast<size_t>(task->max_line_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a line of ", line.size(), " bytes, limit ", task->max_line_bytes));
  }
  ASSIGN_OR_RETURN(const Document document, ParseDocument(line));
  return encoder.Append(document, cancelled, &task->tokens);
}

}  // namespace

absl::Status EncodeBlock(const DocumentEncoder& encoder, const std::function<bool()>& cancelled, EncodeTask* task) {
  absl::string_view rest = task->block.bytes;
  int64_t number = task->block.first_line, byte = task->block.first_byte;
  if (byte == 0) absl::ConsumePrefix(&rest, kByteOrderMark);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const absl::string_view line = absl::StripSuffix(rest.substr(0, end), "\r");
    byte = task->block.first_byte + (rest.data() - task->block.bytes.data());
    if (!absl::StripAsciiWhitespace(line).empty()) {
      const absl::Status status = EncodeLine(encoder, line, cancelled, task);
      if (!status.ok()) return BadLine(*task, number, byte, status);
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
  }
  return absl::OkStatus();
}

EncoderPool::EncoderPool(const DocumentEncoder& encoder, int num_threads) : encoder_(encoder) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

EncoderPool::~EncoderPool() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void EncoderPool::Post(EncodeTask* task) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back(task);
}

bool EncoderPool::Wait(const EncodeTask* task, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&task->done), timeout);
}

void EncoderPool::Run() {
  setpriority(PRIO_PROCESS, 0, kNice);  // for this thread only
  const auto cancelled = [this] { return stopping_.load(); };
  const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !tasks_.empty(); };
  for (;;) {
    EncodeTask* task = nullptr;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&wanted));
      if (stopping_) return;
      task = tasks_.front();
      tasks_.pop_front();
    }
    absl::Status status = EncodeBlock(encoder_, cancelled, task);
    absl::MutexLock lock(&mu_);
    task->status = std::move(status);
    task->done = true;
  }
}

}  // namespace switchyard::server
