// Serves the demo model from this process, with two workers beside it, and lets it continue a sentence.
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "clients/cpp/client.h"
#include "proto/support/library_setup.h"
#include "scheduler/base/check.h"
#include "server/config.h"
#include "server/server.h"
#include "switchyard/v1/inference.pb.h"
#include "tests/examples/await_ready.h"

using namespace switchyard;

int main() {
  rpc::SetUpLibraries();
  server::ServerConfig config;
  config.model = "deploy/demo-model";  // or any folder with a HuggingFace checkpoint
  config.port = 0;                     // any free one
  config.metrics_port = -1;            // no page for Prometheus
  config.local_workers = 2;            // processes, which share the experts of every layer
  SY_CHECK_OK(config.Finish());
  auto server = server::Server::Start(config);
  SY_CHECK_OK(server.status());

  auto client = client::Client::Connect(absl::StrCat("127.0.0.1:", (*server)->port()));
  SY_CHECK_OK(client.status());
  examples::AwaitReady(**client);  // workers load the weights

  v1::GenerateRequest request;
  request.set_text("Once upon a time");
  request.set_max_tokens(16);
  request.mutable_sampling()->set_temperature(0);  // greedy: the same answer with any number of workers
  std::string answer;
  SY_CHECK_OK((*client)->Generate(request, [&](const v1::GenerateResponse& part) { answer += part.text(); }));
  std::cout << request.text() << answer << "\n";
  SY_CHECK(!answer.empty());
}
