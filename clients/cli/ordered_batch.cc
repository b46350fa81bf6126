#include "clients/cli/ordered_batch.h"

#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/synchronization/mutex.h"

namespace switchyard::cli {
namespace {

class Batch {
 public:
  Batch(std::istream& in, std::ostream& out, absl::string_view end) : in_(in), out_(out), end_(end) {}

  // Reads the next line that is not blank, and its place in the order; returns false at the end of the input, or when
  // no answer can be written any more.
  bool Next(std::string* line, int* line_number, int* place) {
    absl::MutexLock reading(
        &read_mu_);  // separate from mu_, since reading may wait for a person while answers are written
    {
      absl::MutexLock lock(&mu_);
      const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return unwritten_.size() < static_cast<size_t>(kMaxUnwritten);
      };
      mu_.Await(absl::Condition(&has_room));  // ends, since the awaited answer is under way
      if (!out_) return false;
    }
    while (std::getline(in_, *line)) {
      *line_number = ++lines_read_;
      if (absl::StripAsciiWhitespace(*line).empty()) continue;
      *place = places_given_++;
      return true;
    }
    return false;
  }

  void Write(int place, LineAnswer answer) {
    absl::MutexLock lock(&mu_);
    num_failed_ += answer.ok ? 0 : 1;
    unwritten_[place] = std::move(answer.text);
    for (auto first = unwritten_.begin(); first != unwritten_.end() && first->first == next_place_;
         first = unwritten_.erase(first)) {
      out_ << first->second << end_;
      ++next_place_;
    }
    out_.flush();
  }

  int num_failed() {
    absl::MutexLock lock(&mu_);
    return num_failed_;
  }

 private:
  absl::Mutex read_mu_;
  std::istream& in_ ABSL_GUARDED_BY(read_mu_);
  int lines_read_ ABSL_GUARDED_BY(read_mu_) = 0;
  int places_given_ ABSL_GUARDED_BY(read_mu_) = 0;
  absl::Mutex mu_;
  std::ostream& out_ ABSL_GUARDED_BY(mu_);
  const absl::string_view end_;
  std::map<int, std::string> unwritten_ ABSL_GUARDED_BY(mu_);
  int next_place_ ABSL_GUARDED_BY(mu_) = 0;
  int num_failed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

int AnswerLines(std::istream& in, std::ostream& out, int concurrency,
                const std::function<LineAnswer(int, const std::string&)>& answer, absl::string_view end_of_answer) {
  Batch batch(in, out, end_of_answer);
  std::vector<std::thread> threads;
  for (int i = 0; i < concurrency; ++i) {
    threads.emplace_back([&batch, &answer] {
      std::string line;
      int line_number = 0, place = 0;
      while (batch.Next(&line, &line_number, &place)) batch.Write(place, answer(line_number, line));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return batch.num_failed();
}

}  // namespace switchyard::cli
