// The stream from the engine to a reader that may be slow, gone, or just leaving.
#include "server/engine/token_stream.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace switchyard::server {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(2);

OutputChunk Chunk(int32_t choice, int32_t index, const std::string& text) {
  OutputChunk chunk;
  chunk.choice = choice;
  chunk.index = index;
  chunk.tokens = {100 + index};
  chunk.text = text;
  return chunk;
}

// `count` positions with two alternatives each, numbered from `first`.
std::vector<batching::PositionLogprobs> Positions(int count, int first) {
  std::vector<batching::PositionLogprobs> out(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) out[static_cast<size_t>(i)] = {{first + i, -1, 1}, {{1, -1, 1}, {2, -2, 2}}};
  return out;
}

TEST(TokenStream, APauseOfTheServerIsNoWaitForTheReader) {
  TokenStream stream;
  stream.Forgive(absl::Seconds(5), kStart);
  EXPECT_EQ(stream.WaitingSince(), absl::InfiniteFuture());
  stream.Push(Chunk(0, 0, "a"), kStart);
  stream.Forgive(absl::Seconds(40), kStart + absl::Seconds(42));
  EXPECT_EQ(stream.WaitingSince(), kStart + absl::Seconds(40));
  stream.Forgive(absl::Seconds(40), kStart + absl::Seconds(43));  // never later than now
  EXPECT_EQ(stream.WaitingSince(), kStart + absl::Seconds(43));
}

TEST(TokenStream, LongChunksAreCut) {
  OutputChunk chunk = Chunk(1, 5, "text");
  chunk.tokens = {0, 1, 2, 3, 4, 5, 6, 7};
  chunk.logprobs = Positions(8, 0);
  chunk.prompt_logprobs = Positions(20, 100);
  chunk.finished = true;
  std::vector<int32_t> tokens, prompt, chosen;
  std::string text;
  int parts = 0;
  for (bool last = false; !last; ++parts) {
    std::optional<OutputChunk> part = CutChunk(&chunk, 24);  // 8 positions
    last = !part;
    if (last) part = chunk;
    EXPECT_LE(part->prompt_logprobs.size() + part->logprobs.size(), 8u);
    EXPECT_EQ(part->tokens.size(), part->logprobs.size());
    EXPECT_EQ(part->choice, 1);
    EXPECT_EQ(part->index, 5 + static_cast<int32_t>(tokens.size()));
    EXPECT_EQ(part->finished, last);
    text += part->text;
    tokens.insert(tokens.end(), part->tokens.begin(), part->tokens.end());
    for (const batching::PositionLogprobs& position : part->prompt_logprobs) prompt.push_back(position.chosen.token);
    for (const batching::PositionLogprobs& position : part->logprobs) chosen.push_back(position.chosen.token);
  }
  EXPECT_EQ(parts, 4);
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(chosen, tokens);
  ASSERT_EQ(prompt.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(prompt[static_cast<size_t>(i)], 100 + i);
  EXPECT_EQ(text, "text");
}

// Rows of two layers of top-3, whose first id is the position.
ExpertPaths Paths(int32_t first, int32_t rows) {
  ExpertPaths paths = {.first_position = first, .num_moe_layers = 2, .top_k = 3, .experts = {}};
  for (int32_t row = 0; row < rows; ++row) {
    for (int i = 0; i < 6; ++i) paths.experts.push_back(static_cast<int16_t>(i == 0 ? first + row : i));
  }
  return paths;
}

TEST(TokenStream, ExpertPathsAreCutBetweenRowsAndComeBeforeTheirTokens) {
  OutputChunk chunk = Chunk(0, 0, "text");
  chunk.prompt_logprobs = Positions(2, 100);
  chunk.expert_paths = Paths(7, 20);
  chunk.finished = true;
  OutputChunk together;
  for (bool last = false; !last;) {
    std::optional<OutputChunk> part = CutChunk(&chunk, 9);  // of a row's six ids each is an entry begun
    last = !part;
    if (last) part = chunk;
    EXPECT_LE(part->expert_paths.experts.size(), 9u * 6);
    EXPECT_EQ(part->expert_paths.first_position, 7 + static_cast<int32_t>(together.expert_paths.experts.size()) / 6);
    EXPECT_EQ(part->finished, last);
    EXPECT_EQ(part->tokens.empty(), !last) << "a token comes after the rows that gave it";
    JoinChunk(&together, *std::move(part));
  }
  EXPECT_EQ(together.expert_paths.first_position, 7);
  EXPECT_EQ(together.expert_paths.experts, Paths(7, 20).experts);
  EXPECT_EQ(together.expert_paths.top_k, 3);
  EXPECT_EQ(together.prompt_logprobs.size(), 2u);
  // One row that is longer than a message's budget still goes.
  OutputChunk wide;
  wide.expert_paths = {.first_position = 0, .num_moe_layers = 100, .top_k = 8, .experts = std::vector<int16_t>(1600)};
  const std::optional<OutputChunk> part = CutChunk(&wide, 1);
  ASSERT_TRUE(part);
  EXPECT_EQ(part->expert_paths.experts.size(), 800u);
  EXPECT_EQ(wide.expert_paths.first_position, 1);
}

TEST(TokenStream, ALongPromptsExpertPathsFitMessages) {
  TokenStream stream;
  OutputChunk chunk = Chunk(0, 0, "a");
  // 32k tokens of 48 layers of top-8: 24 MiB.
  chunk.expert_paths = {
      .first_position = 0, .num_moe_layers = 48, .top_k = 8, .experts = std::vector<int16_t>(32768 * 384)};
  stream.Push(std::move(chunk), kStart);
  stream.Close(absl::OkStatus());
  size_t ids = 0;
  while (std::optional<OutputChunk> part = stream.Pop(kStart)) {
    EXPECT_LE(part->expert_paths.experts.size() * sizeof(int16_t), size_t{3} << 20);
    ids += part->expert_paths.experts.size();
  }
  EXPECT_EQ(ids, 32768u * 384);
}

TEST(TokenStream, WhatIsPoppedFitsAMessage) {
  TokenStream stream;
  OutputChunk chunk = Chunk(0, 0, "a");
  chunk.prompt_logprobs = Positions(20000, 0);  // 60 000 entries
  stream.Push(std::move(chunk), kStart);
  stream.Close(absl::OkStatus());
  size_t positions = 0, tokens = 0;
  int parts = 0;
  absl::Status end;
  while (std::optional<OutputChunk> part = stream.Pop(kStart + absl::Seconds(++parts))) {
    EXPECT_LE(part->prompt_logprobs.size() * 3, kEntriesPerMessage + 3);
    positions += part->prompt_logprobs.size();
    tokens += part->tokens.size();
    if (tokens == 0) {
      EXPECT_FALSE(stream.Finished(&end));
      EXPECT_EQ(stream.WaitingSince(), kStart + absl::Seconds(parts)) << "the reader took something";
    }
  }
  EXPECT_EQ(positions, 20000u);
  EXPECT_EQ(tokens, 1u);
  EXPECT_EQ(parts, 5);
  EXPECT_TRUE(stream.Finished(&end));
}

TEST(TokenStream, ChunksOfASlowReaderAreJoined) {
  TokenStream stream;
  int notified = 0;
  stream.Attach([&] { ++notified; });
  EXPECT_EQ(notified, 1) << "notified at once of earlier chunks";
  stream.Push(Chunk(0, 0, "a"), kStart);
  EXPECT_EQ(notified, 2);
  stream.Push(Chunk(1, 0, "x"), kStart);
  stream.Push(Chunk(0, 1, "b"), kStart);
  OutputChunk last = Chunk(0, 2, "c");
  last.logprobs.resize(1);
  last.finished = true;
  last.reason = batching::FinishReason::kStop;
  last.stop_string = "d";
  last.usage.completion_tokens = 3;
  stream.Push(last, kStart);
  EXPECT_EQ(notified, 3) << "once for each choice's first waiting chunk";
  std::optional<OutputChunk> chunk = stream.Pop(kStart);
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->choice, 0);
  EXPECT_EQ(chunk->index, 0);
  EXPECT_EQ(chunk->tokens, (std::vector<int32_t>{100, 101, 102}));
  EXPECT_EQ(chunk->text, "abc");
  EXPECT_EQ(chunk->logprobs.size(), 1u);
  EXPECT_TRUE(chunk->finished);
  EXPECT_EQ(chunk->reason, batching::FinishReason::kStop);
  EXPECT_EQ(chunk->stop_string, "d");
  EXPECT_EQ(chunk->usage.completion_tokens, 3);
  chunk = stream.Pop(kStart);
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->choice, 1);
  EXPECT_FALSE(stream.Pop(kStart));
  stream.Detach();
}

TEST(TokenStream, AChunkOfLogprobsAloneTakesTheIndexOfTheFirstToken) {
  OutputChunk prompt;
  prompt.prompt_logprobs.resize(4);
  JoinChunk(&prompt, Chunk(0, 0, "a"));
  OutputChunk later;
  JoinChunk(&later, Chunk(0, 7, "b"));
  EXPECT_EQ(prompt.prompt_logprobs.size(), 4u);
  EXPECT_EQ(later.index, 7);
}

TEST(TokenStream, WaitingSinceIsTheOldestUnread) {
  TokenStream stream;
  EXPECT_EQ(stream.WaitingSince(), absl::InfiniteFuture());
  stream.Push(Chunk(0, 0, "a"), kStart);
  stream.Push(Chunk(1, 0, "b"), kStart + absl::Seconds(3));
  EXPECT_EQ(stream.WaitingSince(), kStart);
  (void)stream.Pop(kStart + absl::Seconds(5));  // reads again, which resets its time
  EXPECT_EQ(stream.WaitingSince(), kStart + absl::Seconds(5));
  (void)stream.Pop(kStart + absl::Seconds(6));
  EXPECT_EQ(stream.WaitingSince(), absl::InfiniteFuture());
}

TEST(TokenStream, ACleanEndComesAfterTheLastChunk) {
  TokenStream stream;
  stream.Push(Chunk(0, 0, "a"), kStart);
  stream.Close(absl::OkStatus());
  absl::Status end = absl::InternalError("untouched");
  EXPECT_FALSE(stream.Finished(&end));
  ASSERT_TRUE(stream.Pop(kStart));
  EXPECT_TRUE(stream.Finished(&end));
  EXPECT_TRUE(end.ok());
}

TEST(TokenStream, AnErrorDropsWhatWaits) {
  TokenStream stream;
  int notified = 0;
  stream.Push(Chunk(0, 0, "a"), kStart);
  stream.Attach([&] { ++notified; });
  stream.Close(absl::UnavailableError("lost"));
  EXPECT_EQ(notified, 2);
  EXPECT_FALSE(stream.Pop(kStart));
  EXPECT_EQ(stream.WaitingSince(), absl::InfiniteFuture());
  absl::Status end;
  EXPECT_TRUE(stream.Finished(&end));
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  stream.Close(absl::OkStatus());
  stream.Push(Chunk(0, 1, "b"), kStart);
  EXPECT_FALSE(stream.Pop(kStart)) << "nothing after the end";
  EXPECT_TRUE(stream.Finished(&end));
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << "the first end counts";
  EXPECT_EQ(notified, 2);
}

TEST(TokenStream, HoldsOneChunkPerChoiceHoweverSlowTheReader) {
  TokenStream stream;
  for (int i = 0; i < 10000; ++i) stream.Push(Chunk(i % 4, i / 4, "x"), kStart);
  int chunks = 0;
  size_t tokens = 0;
  while (std::optional<OutputChunk> chunk = stream.Pop(kStart)) {
    ++chunks;
    tokens += chunk->tokens.size();
  }
  EXPECT_EQ(chunks, 4);
  EXPECT_EQ(tokens, 10000u);
}

// The engine pushes and closes while the reader attaches, reads and leaves: no notify after Detach, no token lost.
TEST(TokenStream, ReadersComeAndGoWhileTheEngineWrites) {
  constexpr int kTokens = 20;
  for (int round = 0; round < 3000; ++round) {
    auto stream = std::make_shared<TokenStream>();
    std::thread engine([stream] {
      for (int i = 0; i < kTokens; ++i) stream->Push(Chunk(0, i, "x"), kStart);
      stream->Close(absl::OkStatus());
    });
    auto alive = std::make_unique<std::atomic<bool>>(true);  // freed after Detach: a late notify is a use after free
    const bool leaves_early = round % 3 == 0;
    absl::Notification done;
    int next = 0;
    stream->Attach([&, reader = alive.get()] {
      EXPECT_TRUE(reader->load());
      while (std::optional<OutputChunk> chunk = stream->Pop(kStart)) {
        EXPECT_EQ(chunk->index, next);
        next += static_cast<int>(chunk->tokens.size());
      }
      absl::Status end;
      if (stream->Finished(&end) && !done.HasBeenNotified()) done.Notify();
    });
    if (!leaves_early) done.WaitForNotification();
    stream->Detach();
    alive->store(false);
    alive.reset();
    if (!leaves_early) {
      EXPECT_EQ(next, kTokens);
    }
    engine.join();
  }
}

}  // namespace
}  // namespace switchyard::server
