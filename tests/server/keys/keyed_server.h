// A server with a keys file, for tests of what each key may do.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "proto/support/errors.h"
#include "tests/server/keys/test_keys.h"
#include "tests/server/server_fixture.h"

namespace switchyard::server {

class KeyedServerTest : public ServerTest {
 protected:
  virtual std::string Keys() {
    return KeyLine("alice", "user") + KeyLine("bob", "user") + KeyLine("tina", "trainer") + KeyLine("root", "admin");
  }
  void Configure(ServerConfig* config) override { config->api_keys_file = WriteKeys(dir_, Keys()); }
  // Sends raw bytes to a method ("InferenceService/Abort") with the key of `name` ("": without one).
  grpc::Status CallAs(const std::string& name, const std::string& method, const std::string& bytes = "") {
    grpc::GenericStub stub(absl::StartsWith(method, "InferenceService") ? channel_ : admin_channel_);
    const std::unique_ptr<grpc::ClientContext> context = ContextOf(name);
    grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(context.get(), "/switchyard.v1." + method, grpc::StubOptions(), &request, &response,
                   [&](grpc::Status result) {
                     status = std::move(result);
                     done.Notify();
                   });
    done.WaitForNotification();
    return status;
  }
  v1::GetLoadResponse LoadAs(const std::string& name) {
    v1::GetLoadResponse load;
    EXPECT_TRUE(stub_->GetLoad(ContextOf(name).get(), v1::GetLoadRequest(), &load).ok());
    return load;
  }
  // A worker, which has the join token and no key; waits until requests are served.
  std::unique_ptr<LinkWorker> ConnectWorker() {
    auto worker = std::make_unique<LinkWorker>(worker_channel_, kToken);
    for (const absl::Time end = absl::Now() + absl::Seconds(60); absl::Now() < end && !LoadAs("root").ready();)
      continue;
    EXPECT_TRUE(LoadAs("root").ready());
    return worker;
  }
};

}  // namespace switchyard::server
