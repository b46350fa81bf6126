// Follows a training job until it is over.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "clients/cli/console.h"
#include "clients/cpp/messages_fwd.h"

namespace switchyard::client {
class Client;
}  // namespace switchyard::client

namespace switchyard::cli {

// "step 120/2000 | loss 3.2140 | eval 3.3010 | norm 0.87 | lr 3.00e-04 | 12345 tok/s | 40 dropped | 1m20s left"; while
// it does not train, what it does instead.  Dropped: choices of the step that found no room at their expert, if any.
std::string ProgressLine(const v1::Job& job);
// "SUCCEEDED", "PAUSING" …
std::string StateName(v1::JobState state);
bool IsFinal(v1::JobState state);

struct WatchOptions {
  std::string id;
  bool json = false;                           // a line of JSON a message, else ProgressLine
  absl::Duration interval = absl::Seconds(1);  // between messages, at least
  absl::Duration patience = absl::Minutes(5);  // with a server that does not answer: it may be starting again
};

// kExitOk: it has succeeded.  A console that is live has one line that is written over.
int Watch(Console& console, client::Client& client, const WatchOptions& options);

}  // namespace switchyard::cli
