// A server of the demo model in this process and a client of it, for the examples that call a server.
#pragma once

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "clients/cpp/client.h"
#include "proto/support/library_setup.h"
#include "scheduler/base/check.h"
#include "server/config.h"
#include "server/server.h"
#include "tests/examples/await_ready.h"

namespace switchyard::examples {

class DemoServer {
 public:
  // Returns once the model can answer.  serve.cc does the same line by line.
  explicit DemoServer(server::ServerConfig config = {}) {
    rpc::SetUpLibraries();
    config.model = "deploy/demo-model";
    config.port = 0;
    config.metrics_port = -1;
    SY_CHECK_OK(config.Finish());
    auto server = server::Server::Start(std::move(config));
    SY_CHECK_OK(server.status());
    server_ = *std::move(server);
    client_ = ConnectTo(server_->port());
    admin_client_ = ConnectTo(server_->admin_port());
    AwaitReady(*client_);
  }

  client::Client& client() { return *client_; }
  client::Client& admin_client() { return *admin_client_; }  // for jobs and administration

 private:
  static std::unique_ptr<client::Client> ConnectTo(int port) {
    auto client = client::Client::Connect(absl::StrCat("127.0.0.1:", port));
    SY_CHECK_OK(client.status());
    return *std::move(client);
  }

  std::unique_ptr<server::Server> server_;
  std::unique_ptr<client::Client> client_, admin_client_;
};

}  // namespace switchyard::examples
