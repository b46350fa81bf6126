// Pieces of output as messages: log probabilities, expert paths, and how a choice ends.
#include <string>

#include "tests/server/api/convert_fixture.h"

namespace switchyard::server {
namespace {

TEST_F(ConvertTest, AFinishedChunkCarriesReasonUsageAndTimings) {
  OutputChunk chunk;
  chunk.choice = 1;
  chunk.index = 4;
  chunk.tokens = {'a', kEnd};
  chunk.text = "a";
  chunk.logprobs.resize(2);
  chunk.logprobs[0].chosen = {'a', -0.5f, 2};
  chunk.logprobs[0].top = {{'b', -0.25f, 1}};
  chunk.finished = true;
  chunk.reason = batching::FinishReason::kStop;
  chunk.stop_token = kEnd;
  chunk.usage.prompt_tokens = 3;
  chunk.usage.completion_tokens = 6;
  chunk.usage.cached_tokens = 2;
  chunk.timings.queued = args_.now;
  chunk.timings.first_scheduled = args_.now + absl::Seconds(1);
  chunk.timings.first_token = args_.now + absl::Seconds(3);
  chunk.timings.last_token = args_.now + absl::Seconds(6);
  const v1::GenerateResponse message = ToProto(chunk, *text_);
  EXPECT_EQ(message.choice(), 1);
  EXPECT_EQ(message.index(), 4);
  EXPECT_EQ(message.token_ids_size(), 2);
  EXPECT_EQ(message.logprobs(0).chosen().text(), "a");
  EXPECT_EQ(message.logprobs(0).chosen().rank(), 2);
  EXPECT_EQ(message.logprobs(0).top(0).token_id(), 'b');
  EXPECT_EQ(message.finish().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(message.finish().stop_token_id(), kEnd);
  EXPECT_FALSE(message.finish().has_stop_string());
  EXPECT_EQ(message.finish().usage().cached_tokens(), 2);
  EXPECT_EQ(message.finish().timings().queue_seconds(), 1);
  EXPECT_EQ(message.finish().timings().prefill_seconds(), 2);
  EXPECT_EQ(message.finish().timings().decode_seconds(), 3);
}

// A token's text is what it adds to the output, not the vocabulary's spelling ("Ġ"); its bytes are exact.
TEST_F(ConvertTest, LogprobsHaveDecodedTextAndItsBytes) {
  OutputChunk chunk;
  chunk.logprobs.resize(3);
  chunk.logprobs[0].chosen = {' ', -0.5f, 1};
  chunk.logprobs[1].chosen = {0xC3, -0.5f, 1};  // the first byte of two
  chunk.logprobs[2].chosen = {kEnd, -0.5f, 2};
  chunk.logprobs[2].top = {{'\n', -0.25f, 1}};
  const v1::GenerateResponse message = ToProto(chunk, *text_);
  EXPECT_EQ(message.logprobs(0).chosen().text(), " ");
  EXPECT_EQ(message.logprobs(1).chosen().text(), "\xEF\xBF\xBD");
  EXPECT_EQ(message.logprobs(2).chosen().text(), "<|end|>");
  EXPECT_EQ(message.logprobs(2).top(0).text(), "\n");
  EXPECT_EQ(message.logprobs(0).chosen().bytes(), " ");
  EXPECT_EQ(message.logprobs(1).chosen().bytes(), "\xC3");
  EXPECT_EQ(message.logprobs(2).chosen().bytes(), "<|end|>");
  EXPECT_EQ(message.logprobs(2).top(0).bytes(), "\n");
}

}  // namespace
}  // namespace switchyard::server
