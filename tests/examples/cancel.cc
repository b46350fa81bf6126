// Cancels an answer while it is generated: the call ends at once, and the server stops the work and frees its memory.
#include <atomic>
#include <iostream>

#include "absl/synchronization/notification.h"
#include "clients/cpp/client_error.h"
#include "scheduler/base/check.h"
#include "switchyard/v1/inference.pb.h"
#include "tests/examples/demo_server.h"

using namespace switchyard;

int main() {
  examples::DemoServer server;
  v1::GenerateRequest request;
  request.set_text("The sea is");
  request.set_max_tokens(1000);
  request.set_ignore_eos(true);

  std::atomic<int> tokens = 0;
  absl::Notification enough;
  const auto count = [&](const v1::GenerateResponse& part) {  // runs on a thread of gRPC
    if (tokens += part.token_ids_size(); tokens >= 3 && !enough.HasBeenNotified()) enough.Notify();
  };
  auto stream = server.client().StartGenerate(request, {.on_message = count, .on_done = {}});
  enough.WaitForNotification();
  stream->Cancel();  // any thread may; it does not block
  const absl::Status end = stream->Wait();

  std::cout << tokens << " tokens, then: " << client::Explain(end) << "\n";
  SY_CHECK(absl::IsCancelled(end));
  SY_CHECK_LT(tokens.load(), 1000);
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (server.client().GetLoad()->running_requests() > 0) SY_CHECK(absl::Now() < limit);
}
