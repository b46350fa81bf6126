// A fake server of a model with two MoE layers of four experts, top-1: token t at position p goes to experts t % 4 and
// p % 4.
#pragma once

#include <vector>

#include "tests/clients/fake_server.h"

namespace switchyard::client {

inline void RouteByTokenAndPosition(FakeServer* server) {
  server->model.set_num_moe_layers(2);
  server->model.set_num_experts(4);
  server->model.set_experts_per_token(1);
  server->model.set_max_model_len(11);
  server->model.set_weights_hash("weights");
  server->on_generate = [](grpc::ServerContext*, const v1::GenerateRequest& request,
                           grpc::ServerWriter<v1::GenerateResponse>* writer) {
    std::vector<int32_t> tokens(request.token_ids().ids().begin(), request.token_ids().ids().end());
    const int prompt = static_cast<int>(tokens.size());
    for (int i = 0; i < request.max_tokens(); ++i) tokens.push_back(100 + i);
    int reported = 0;
    for (int i = 0; i < request.max_tokens(); ++i) {
      v1::GenerateResponse message = Part(0, i, "", i + 1 == request.max_tokens());
      v1::ExpertPaths* paths = message.mutable_expert_paths();
      paths->set_first_position(reported);
      paths->set_num_moe_layers(2);
      paths->set_top_k(1);
      for (; reported < prompt + i; ++reported) {
        for (const int expert : {tokens[static_cast<size_t>(reported)] % 4, reported % 4}) {
          paths->mutable_experts()->append({static_cast<char>(expert), '\0'});
        }
      }
      writer->Write(message);
    }
    return grpc::Status::OK;
  };
}

}  // namespace switchyard::client
