// The operators' service: raw methods, as the users' one (inference_service.h).
#pragma once

#include "server/api/front_desk.h"
#include "switchyard/v1/admin.grpc.pb.h"

namespace switchyard {

class AdminServiceImpl final : public v1::AdminService::WithRawCallbackMethod_GetExperts<
                                   v1::AdminService::WithRawCallbackMethod_GetProfile<v1::AdminService::Service>> {
 public:
  // Borrowed; outlives the gRPC server.
  explicit AdminServiceImpl(FrontDesk* desk) : desk_(desk) {}

  grpc::ServerUnaryReactor* GetExperts(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GetProfile(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request) override;

 private:
  FrontDesk* const desk_;
};

}  // namespace switchyard
