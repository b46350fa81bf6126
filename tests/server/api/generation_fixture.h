// Generations, as gRPC and HTTP make them, on an engine with scripted workers.
#pragma once

#include "server/admission/front_pool.h"
#include "server/api/request_context.h"
#include "tests/server/engine/engine_fixture.h"

namespace switchyard::server {

class GenerationTest : public EngineTest {
 protected:
  // Behind Start.
  void UseEngine() {
    if (config.max_streams_per_client == 0) config.max_streams_per_client = config.max_streams;
    context.config = &config;
    context.text = text.get();
    context.engine = engine.get();
    context.pool = &pool;
    context.metrics = metrics.get();
  }
  double Errors(absl::StatusCode code) { return metrics->request_error(code).Value(); }

  FrontPool pool{1, {.calls = 16, .bytes = 1 << 20, .bytes_per_client = 1 << 20}};
  RequestContext context;
};

}  // namespace switchyard::server
