// Shows tokens as the model makes them, and the counts that the server sends at the end.
#include <iostream>

#include "scheduler/base/check.h"
#include "switchyard/v1/inference.pb.h"
#include "tests/examples/demo_server.h"

using namespace switchyard;

int main() {
  examples::DemoServer server;
  v1::GenerateRequest request;
  request.set_text("The sea is");
  request.set_max_tokens(24);
  request.set_ignore_eos(true);             // all 24 of them
  request.mutable_sampling()->set_seed(7);  // the same seed gives the same answer

  int tokens = 0;
  v1::Finish finish;
  const auto show = [&](const v1::GenerateResponse& part) {
    std::cout << part.text() << std::flush;  // whole characters: a part may have several tokens, or none
    tokens += part.token_ids_size();
    if (part.has_finish()) finish = part.finish();
  };
  SY_CHECK_OK(server.client().Generate(request, show));  // blocks until the stream has ended

  const v1::Timings& times = finish.timings();
  std::cout << "\n"
            << tokens << " tokens, the first after " << times.queue_seconds() + times.prefill_seconds() << " s\n";
  SY_CHECK_EQ(tokens, 24);
  SY_CHECK_EQ(finish.usage().completion_tokens(), 24);
  SY_CHECK_EQ(v1::FinishReason_Name(finish.reason()), "FINISH_REASON_LENGTH");
}
