#include "tests/clients/fake_server.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "proto/support/errors.h"

namespace switchyard::client {

v1::GenerateResponse Part(int choice, int index, const std::string& text, bool last) {
  v1::GenerateResponse message;
  if (index == 0) {
    message.set_request_id("req-1");
    message.set_model("fake");
    message.set_seed(7);
  }
  message.set_choice(choice);
  message.set_index(index);
  message.add_token_ids(100 + index);
  message.set_text(text);
  if (last) {
    message.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
    message.mutable_finish()->mutable_usage()->set_prompt_tokens(3);
    message.mutable_finish()->mutable_usage()->set_completion_tokens(index + 1);
    message.mutable_finish()->mutable_usage()->set_cached_tokens(2);
    message.mutable_finish()->mutable_timings()->set_decode_seconds(0.5);
  }
  return message;
}

FakeServer::FakeServer() {
  model.set_model("fake");
  model.set_vocab_size(256);
  model.set_max_model_len(1024);
  model.add_eos_token_ids(2);
  model.set_has_tokenizer(true);
  model.set_has_chat_template(true);
  load.set_ready(true);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  SetReady(true);
}

FakeServer::~FakeServer() { server_->Shutdown(std::chrono::system_clock::now()); }

std::string FakeServer::address() const { return absl::StrCat("127.0.0.1:", port_); }

void FakeServer::SetReady(bool ready) { server_->GetHealthCheckService()->SetServingStatus("readiness", ready); }

std::vector<v1::GenerateRequest> FakeServer::requests() {
  absl::MutexLock lock(&mu_);
  return requests_;
}

grpc::Status FakeServer::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                  grpc::ServerWriter<v1::GenerateResponse>* writer) {
  {
    absl::MutexLock lock(&mu_);
    requests_.push_back(*request);
  }
  if (on_generate) return on_generate(context, *request, writer);
  const int count = request->has_max_tokens() ? request->max_tokens() : 4;
  for (int i = 0; i < count; ++i) writer->Write(Part(0, i, absl::StrCat(i > 0 ? " " : "", "t", i), i + 1 == count));
  return grpc::Status::OK;
}

grpc::Status FakeServer::Abort(grpc::ServerContext*, const v1::AbortRequest* request, v1::AbortResponse*) {
  return rpc::ToGrpcStatus(rpc::MakeError(absl::StatusCode::kNotFound, v1::REQUEST_NOT_FOUND,
                                          absl::StrCat("no request ", request->request_id())),
                           "");
}

grpc::Status FakeServer::Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                                  v1::TokenizeResponse* response) {
  std::string text = request->text();
  if (request->has_messages()) {
    for (const v1::ChatMessage& message : request->messages().messages())
      absl::StrAppend(&text, "<", message.role(), ">", message.content());
    response->set_rendered_text(text);
  }
  for (char c : text) {
    response->add_token_ids(static_cast<unsigned char>(c));
    response->add_tokens(std::string(1, c));
  }
  return grpc::Status::OK;
}

grpc::Status FakeServer::Detokenize(grpc::ServerContext*, const v1::DetokenizeRequest* request,
                                    v1::DetokenizeResponse* response) {
  std::string text;
  for (int32_t id : request->token_ids()) {
    if (id > 127)
      return rpc::ToGrpcStatus(
          rpc::BadField("token_ids", absl::StrCat(id, " outside [0, 128)"), "128", absl::StrCat(id)), "");
    text.push_back(static_cast<char>(id));
  }
  response->set_text(text);
  return grpc::Status::OK;
}

grpc::Status FakeServer::GetModelInfo(grpc::ServerContext*, const v1::GetModelInfoRequest*,
                                      v1::GetModelInfoResponse* response) {
  *response = model;
  return model_status;
}

grpc::Status FakeServer::GetLoad(grpc::ServerContext*, const v1::GetLoadRequest*, v1::GetLoadResponse* response) {
  if (before_load) before_load();
  *response = load;
  return grpc::Status::OK;
}

}  // namespace switchyard::client
