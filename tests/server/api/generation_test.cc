// Places of generations: in all, and of one client.
#include "server/api/generation.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/server/api/generation_fixture.h"

namespace switchyard::server {
namespace {

// A call that is refused stays until its client has read why.
TEST_F(GenerationTest, ACallThatIsRefusedHoldsNoPlace) {
  config.max_streams = 3;
  config.max_streams_per_client = 2;
  Start();
  UseEngine();
  std::vector<std::unique_ptr<Generation>> calls;
  const auto enter = [&](const char* peer) {
    calls.push_back(std::make_unique<Generation>(&context, Caller(), peer, nullptr));
    return std::string(calls.back()->Enter().message());
  };
  for (int i = 0; i < 2; ++i) EXPECT_EQ(enter("ipv4:10.0.0.1:1"), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(enter("ipv4:10.0.0.1:1"), "open Generate calls of one client: limit 2");
  EXPECT_EQ(enter("ipv4:10.0.0.2:1"), "");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(enter("ipv4:10.0.0.3:1"), "open Generate calls: limit 3");
  EXPECT_EQ(metrics->open_streams->Value(), 3);
  calls[0] = nullptr;
  EXPECT_EQ(enter("ipv4:10.0.0.4:1"), "");
  calls.clear();
  EXPECT_EQ(metrics->open_streams->Value(), 0);
  EXPECT_EQ(context.streams_of.num_clients(), 0u);
}

}  // namespace
}  // namespace switchyard::server
