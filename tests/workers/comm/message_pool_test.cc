// What a pool of messages keeps: as many buffers of each size as were in messages at once lately.
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "workers/comm/local/message.h"

namespace switchyard::comm {
namespace {

constexpr int64_t kSmall = 4096, kLarge = 65536;  // buffers; a header fits, too
constexpr int64_t kMost = int64_t{1} << 30;

std::vector<Message> Take(MessagePool* pool, int count, int64_t buffer_bytes) {
  std::vector<Message> messages;
  for (int i = 0; i < count; ++i) messages.push_back(pool->Take(buffer_bytes - kFrameHeaderBytes));
  return messages;
}

TEST(MessagePoolTest, KeepsWhatWasOutAtOnce) {
  const auto pool = MessagePool::Create();
  for (int round = 0; round < 3; ++round) {
    const std::vector<Message> messages = Take(pool.get(), 5, kLarge);
    EXPECT_EQ(pool->bytes().out, 5 * kLarge);
    Take(pool.get(), 2, kLarge);
    EXPECT_EQ(pool->bytes().kept, 2 * kLarge);
  }
  EXPECT_EQ(pool->bytes().out, 0);
  EXPECT_EQ(pool->bytes().kept, 7 * kLarge);
  EXPECT_EQ(pool->bytes().most_out, 7 * kLarge);
}

TEST(MessagePoolTest, ForgetsWhatWasLargeTwoWindowsAgo) {
  const auto pool = MessagePool::Create(kMost, 8);
  Take(pool.get(), 3, kLarge);
  EXPECT_EQ(pool->bytes().kept, 3 * kLarge);
  for (int i = 0; i < 5; ++i) Take(pool.get(), 1, kSmall);  // this window
  for (int i = 0; i < 8; ++i) Take(pool.get(), 1, kSmall);  // the next
  EXPECT_EQ(pool->bytes().kept, 3 * kLarge + kSmall);
  Take(pool.get(), 1, kSmall);
  EXPECT_EQ(pool->bytes().kept, kSmall);
  EXPECT_EQ(pool->bytes().most_out, 3 * kLarge);
}

TEST(MessagePoolTest, ALargeStepNowAndThenStaysThere) {
  const auto pool = MessagePool::Create(kMost, 8);
  const void* large = nullptr;
  for (int step = 0; step < 10; ++step) {
    {
      const std::vector<Message> message = Take(pool.get(), 1, kLarge);
      if (step == 0) large = message[0].frame();
      EXPECT_EQ(message[0].frame(), large) << "it has not been allocated again";
    }
    for (int i = 0; i < 7; ++i) Take(pool.get(), 1, kSmall);
  }
}

TEST(MessagePoolTest, MessagesThatAreOutLongerThanAWindow) {
  const auto pool = MessagePool::Create(kMost, 2);
  std::vector<Message> held = Take(pool.get(), 3, kLarge);
  for (int i = 0; i < 10; ++i) Take(pool.get(), 1, kSmall);
  EXPECT_EQ(pool->bytes().out, 3 * kLarge);
  held.clear();
  EXPECT_EQ(pool->bytes().kept, 3 * kLarge + kSmall) << "they were in messages until now";
  for (int i = 0; i < 5; ++i) Take(pool.get(), 1, kSmall);
  EXPECT_EQ(pool->bytes().kept, kSmall);
}

TEST(MessagePoolTest, KeepsNoMoreThanItMay) {
  const auto pool = MessagePool::Create(2 * kLarge);
  Take(pool.get(), 4, kLarge);
  EXPECT_EQ(pool->bytes().kept, 2 * kLarge);
  EXPECT_EQ(pool->bytes().out, 0);
  Message empty = pool->Take(0);
  Message moved = std::move(empty);
  EXPECT_EQ(pool->bytes().out, kSmall);
}

}  // namespace
}  // namespace switchyard::comm
