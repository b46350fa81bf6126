// Prints training jobs, and follows one until it is over.
#pragma once

#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "clients/cli/console.h"
#include "clients/cpp/messages_fwd.h"

namespace switchyard::client {
class Client;
}  // namespace switchyard::client

namespace switchyard::cli {

// Returns "step 120/2000 | loss 3.2140 | eval 3.3010 | norm 0.87 | lr 3.00e-04 | 12345 tok/s | 40 dropped | 1m20s
// left", or what the job does while it is not training.  Dropped: (token, choice) pairs of the step beyond an expert's
// capacity.
// The job's steps in all; 0: they follow from its epochs, and none was done yet.
int64_t TotalSteps(const v1::Job& job);
std::string ProgressLine(const v1::Job& job);
// "SUCCEEDED", "PAUSING" …
std::string StateName(v1::JobState state);
bool IsFinal(v1::JobState state);

// Prints all about a job, over several lines.
void PrintJob(std::ostream& out, const v1::Job& job);
// Prints a line of a list of jobs, and the line above them.
void PrintJobRow(std::ostream& out, const v1::Job& job);
void PrintJobHeader(std::ostream& out);

struct WatchOptions {
  std::string id;
  bool json = false;                           // prints each message as a line of JSON, else as ProgressLine
  absl::Duration interval = absl::Seconds(1);  // between messages, at least
  absl::Duration patience = absl::Minutes(5);  // how long the server may not answer: it may be restarting
};

// Prints the job's progress until it is over; returns kExitOk if it succeeded.  A live console shows one line that is
// overwritten.
int Watch(Console& console, client::Client& client, const WatchOptions& options);

}  // namespace switchyard::cli
