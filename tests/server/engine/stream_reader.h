// A reader of a request's stream, which reads it to its end, or not at all.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "scheduler/base/clock.h"
#include "server/engine/token_stream.h"
#include "tests/server/engine/watched.h"

namespace switchyard::server {

class Reader {
 public:
  explicit Reader(bool reads = true) : reads_(reads), stream_(std::make_shared<TokenStream>()) {
    stream_->Attach([this] { Read(); });
  }
  ~Reader() { stream_->Detach(); }

  const std::shared_ptr<TokenStream>& stream() const { return stream_; }
  absl::Status End() {
    EXPECT_TRUE(done_.WaitForNotificationWithTimeout(kPatience)) << "the call hangs";
    return done_.HasBeenNotified() ? end_ : absl::InternalError("hangs");
  }
  std::string Reason() { return rpc::ViewError(rpc::ToGrpcStatus(End(), "")).reason; }
  void AwaitTokens(size_t count) {
    EXPECT_TRUE(output_.Await([&](const Output& output) { return output.tokens.size() >= count; }))
        << tokens().size() << " tokens";
  }
  // Of choice 0.
  std::string text() const { return output_.Get().text; }
  std::vector<int32_t> tokens() const { return output_.Get().tokens; }
  // Of any.
  OutputChunk last() const { return output_.Get().last; }
  int finished_choices() const { return output_.Get().finished; }

 private:
  struct Output {
    std::vector<int32_t> tokens;
    std::string text;
    OutputChunk last;
    int finished = 0;

    void Take(OutputChunk chunk) {
      if (chunk.choice == 0) {
        if (!chunk.tokens.empty()) {
          EXPECT_EQ(chunk.index, static_cast<int>(tokens.size()));
        }
        tokens.insert(tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
        text += chunk.text;
      }
      finished += chunk.finished ? 1 : 0;
      last = std::move(chunk);
    }
  };

  void Read() {
    while (reads_) {
      std::optional<OutputChunk> chunk = stream_->Pop(MonotonicNow());
      if (!chunk) break;
      output_.Change([&](Output* output) { output->Take(*std::move(chunk)); });
    }
    absl::Status end;
    if (stream_->Finished(&end) && !done_.HasBeenNotified()) {
      end_ = end;
      done_.Notify();
    }
  }

  const bool reads_;
  const std::shared_ptr<TokenStream> stream_;
  Watched<Output> output_;
  absl::Status end_;
  absl::Notification done_;
};

}  // namespace switchyard::server
