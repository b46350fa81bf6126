// One Generate call under way.
//
// Messages arrive through a callback on gRPC's threads, in order, one at a time; a callback that blocks slows down only
// this stream and, by flow control, the server's work on it.  Client::StartGenerate makes it.  It keeps the Client's
// channel alive, and must not be destroyed from within its own callbacks.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "clients/cpp/messages_fwd.h"

namespace switchyard::client {

class GenerateStream {
 public:
  struct Events {
    std::function<void(const v1::GenerateResponse&)> on_message;
    std::function<void(const absl::Status&)> on_done;  // exactly once, after the last message; may be empty
  };

  // Cancels a call that still runs and waits until on_done has returned.
  virtual ~GenerateStream() = default;

  // Thread-safe, returns at once; the call then ends with CANCELLED, unless it has just ended otherwise.
  virtual void Cancel() = 0;
  // Blocks until the call has ended, at most until its deadline; returns how it ended.
  virtual absl::Status Wait() = 0;
  virtual bool Done() const = 0;
};

}  // namespace switchyard::client
