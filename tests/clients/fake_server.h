// A fake InferenceService in this process, whose answers a test scripts, to test clients without a model.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server.h"
#include "switchyard/v1/inference.grpc.pb.h"

namespace switchyard::client {

class FakeServer final : public v1::InferenceService::Service {
 public:
  using GenerateFn = std::function<grpc::Status(grpc::ServerContext*, const v1::GenerateRequest&,
                                                grpc::ServerWriter<v1::GenerateResponse>*)>;

  FakeServer();  // listens on a free port of 127.0.0.1; ready
  ~FakeServer() override;

  std::string address() const;
  std::string flag() const { return "--server=" + address(); }
  void SetReady(bool ready);

  // Script these before the calls that use them.  The default generates the words "t0 t1 ..." for max_tokens (4).
  GenerateFn on_generate;
  v1::GetModelInfoResponse model;
  v1::GetLoadResponse load;
  std::function<void()> before_load;  // runs before GetLoad is answered; may be null
  grpc::Status model_status;

  std::vector<v1::GenerateRequest> requests();  // seen so far

 private:
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  grpc::Status Abort(grpc::ServerContext*, const v1::AbortRequest* request, v1::AbortResponse*) override;
  // Token ids are the text's bytes.
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override;
  grpc::Status Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override;
  grpc::Status GetModelInfo(grpc::ServerContext*, const v1::GetModelInfoRequest*,
                            v1::GetModelInfoResponse* response) override;
  grpc::Status GetLoad(grpc::ServerContext*, const v1::GetLoadRequest*, v1::GetLoadResponse* response) override;

  absl::Mutex mu_;
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mu_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// A message of a stream: one token, its text, and the finish if `last`.
v1::GenerateResponse Part(int choice, int index, const std::string& text, bool last = false);

}  // namespace switchyard::client
