// The users' service, InferenceService.  Its methods are raw, so that malformed bytes get an error that explains them
// (proto/support/raw_message.h).
#pragma once

#include "server/api/request_context.h"
#include "switchyard/v1/inference.grpc.pb.h"

namespace switchyard::server {

// GetLoad's answer.  Any thread; does not block.
v1::GetLoadResponse DescribeLoad(const RequestContext& request_context);

// Every method of InferenceService, raw, except Generate, which the constructor adds.
using RawInferenceService =
    v1::InferenceService::WithRawCallbackMethod_Abort<v1::InferenceService::WithRawCallbackMethod_Tokenize<
        v1::InferenceService::WithRawCallbackMethod_Detokenize<v1::InferenceService::WithRawCallbackMethod_GetModelInfo<
            v1::InferenceService::WithRawCallbackMethod_GetLoad<v1::InferenceService::Service>>>>>;

class InferenceServiceImpl final : public RawInferenceService {
 public:
  // Borrowed; outlives the gRPC server.
  explicit InferenceServiceImpl(RequestContext* request_context);

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;

 private:
  RequestContext* const request_context_;
};

}  // namespace switchyard::server
