// Attempts to misuse real servers: what each tries, and how it must be refused.
//
// A table is a list of Attempts.  Each runs as one test (attempts_test.cc): its answer, in words, must match `refusal`,
// and afterwards the servers answer as before.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/raw_call.h"
#include "tests/e2e/training_fixture.h"

namespace switchyard {

inline constexpr char kGenerateMethod[] = "/switchyard.v1.InferenceService/Generate";
inline constexpr char kLinkMethod[] = "/switchyard.v1.WorkerService/Link";

// The attacked servers, shared by all attempts and started at their first use.
//  open   one worker and no keys; workers from elsewhere need a join token
//  keyed  two users (alice, quota of one request a minute for poor), two trainers (tina, theo), an admin (root); the
//         key of NAME is key-NAME, and jobs run
class AttackedServers {
 public:
  static constexpr char kJoinToken[] = "a join token of some length";

  // Null, with a test failure, where it does not start.
  TestServer* open();
  TestServer* keyed();
  const std::string& folder() const { return folder_; }  // for files of attempts
  TrainingServer* training() { return keyed_.get(); }
  // A job of tina, which is paused or over.
  const std::string& job_of_tina();
  // Empty, or what has changed: a server that ended, does not answer as before, or has lost workers.
  std::string Difference();
  // Ends all servers; calls what OnStop was given first.
  void Stop();
  void OnStop(std::function<void()> last) { on_stop_ = std::move(last); }

  // One call with the key of `name` ("": without one) and its answer.
  std::string CallAs(const std::string& name, const std::string& method, const std::string& bytes = "");

 private:
  std::string DifferenceOf(TestServer* server, const std::string& key);

  std::string folder_;
  std::unique_ptr<TestServer> open_;
  std::unique_ptr<TrainingServer> keyed_;
  std::string job_;
  std::function<void()> on_stop_;
};

struct Attempt {
  const char* name;
  const char* refusal;  // a regular expression that is found in the answer
  std::function<std::string(AttackedServers&)> run;
};
inline void PrintTo(const Attempt& attempt, std::ostream* out) { *out << attempt.name; }

// Answers in words.  A call's: CODE REASON: message; "served" if it was.
std::string InWords(const grpc::Status& status);
// Sends `bytes` over a connection of its own and waits until the server closes it, resets or answers the stream, at
// most `limit`: "ended", "goaway 1 ended", "reset 11", "grpc-status 12", "grpc-status 0", "nothing".
// answers: acknowledges SETTINGS and PING meanwhile.
std::string AfterFrames(const std::string& address, const std::string& bytes, bool answers = true,
                        absl::Duration limit = absl::Seconds(8));
// Sends a request of HTTP/1: its answer's first line, "ended" or "nothing".
std::string AfterHttp(const std::string& address, const std::string& bytes, absl::Duration limit = absl::Seconds(8));
// Runs a program to its end: "exit 2: output".
std::string AfterStart(const std::vector<std::string>& args);

// The tables.
std::vector<Attempt> KeyAttempts();
std::vector<Attempt> RoleAttempts();
std::vector<Attempt> JobAttempts();
std::vector<Attempt> JoinAttempts();
std::vector<Attempt> HttpAttempts();
std::vector<Attempt> HttpApiAttempts();
std::vector<Attempt> FrameAttempts();
std::vector<Attempt> MessageAttempts();
std::vector<Attempt> StartAttempts();
std::vector<Attempt> TlsAttempts();
// What gRPC serves as if the fault were not there; none of it changes who may do what.
std::vector<Attempt> ToleratedHeaders();
std::vector<Attempt> ToleratedMessages();

}  // namespace switchyard
