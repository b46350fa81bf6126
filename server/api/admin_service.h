// The operators' service, AdminService.  Its methods are raw, as in inference_service.h.
#pragma once

#include "server/api/request_context.h"
#include "switchyard/v1/admin.grpc.pb.h"

namespace switchyard::server {

class AdminServiceImpl final
    : public v1::AdminService::WithRawCallbackMethod_GetExperts<v1::AdminService::WithRawCallbackMethod_GetProfile<
          v1::AdminService::WithRawCallbackMethod_GetPlan<v1::AdminService::Service>>> {
 public:
  // Borrowed; outlives the gRPC server.
  explicit AdminServiceImpl(RequestContext* request_context) : request_context_(request_context) {}

  grpc::ServerUnaryReactor* GetExperts(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetProfile(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;

 private:
  RequestContext* const request_context_;
};

}  // namespace switchyard::server
