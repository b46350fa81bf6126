// Encrypted streams: what arrives is what was sent, in both directions at once, under several keys, and nothing else.
#include "workers/comm/tcp/socket_tls.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::comm {
namespace {

using testing::HasSubstr;

struct Pair {
  std::unique_ptr<TlsStream> a, b;
};

Pair Connect(UniqueFd a, UniqueFd b, int64_t records_of_key = TlsStream::kRecordsOfKey) {
  const auto context = *TlsContext::Make("secret", records_of_key);
  Pair pair = {*context->NewStream(std::move(a), true), *context->NewStream(std::move(b), false)};
  for (bool done = false; !done;) {
    const absl::StatusOr<bool> first = pair.a->Handshake(), second = pair.b->Handshake();
    SY_CHECK_OK(first.status());
    SY_CHECK_OK(second.status());
    done = *first && *second;
  }
  return pair;
}

std::string RandomBytes(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

void Await(const TlsStream& stream, short events) {
  pollfd event = {stream.fd(), events, 0};
  SY_CHECK_EQ(poll(&event, 1, 20'000), 1);
}

// In pieces of changing sizes, of one or two parts.
void WriteAll(TlsStream* stream, const std::string& text, uint32_t seed) {
  std::mt19937 random(seed);
  size_t sent = 0;
  while (sent < text.size()) {
    const size_t bytes = std::min<size_t>(text.size() - sent, 1 + random() % 100'000);
    const size_t first = random() % (bytes + 1);
    char* const at = const_cast<char*>(text.data()) + sent;
    const iovec parts[2] = {{at, first}, {at + first, bytes - first}};
    const int64_t wrote = stream->Write(parts, 2);
    if (wrote == 0) Await(*stream, POLLOUT);
    sent += static_cast<size_t>(wrote);
  }
}

std::string ReadAll(TlsStream* stream, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t got = 0; got < bytes;) {
    const size_t first = (bytes - got) / 3;
    const iovec parts[2] = {{text.data() + got, first}, {text.data() + got + first, bytes - got - first}};
    const absl::StatusOr<int64_t> now = stream->Read(parts, 2);
    SY_CHECK_OK(now.status());
    if (*now == 0) Await(*stream, POLLIN);
    got += static_cast<size_t>(*now);
  }
  return text;
}

// A key for every 3 records of 16 KiB, on a socket that is full most of the time: then a key is used longer, so that
// how many there are depends on the machine.
TEST(TlsStreamTest, BothDirectionsAtOnceUnderManyKeys) {
  auto [a, b] = test::ConnectedPair();
  const Pair pair = Connect(std::move(a), std::move(b), 3);
  const std::string there = RandomBytes(20'000'000, 1), back = RandomBytes(10'000'000, 2);
  for (int round = 0; round == 0 || std::min(pair.a->num_keys(), pair.b->num_keys()) <= 20; ++round) {
    ASSERT_LT(round, 40) << pair.a->num_keys() << " and " << pair.b->num_keys() << " keys";
    auto writes_there = std::async(std::launch::async, [&] { WriteAll(pair.a.get(), there, 3); });
    auto writes_back = std::async(std::launch::async, [&] { WriteAll(pair.b.get(), back, 4); });
    auto reads_back = std::async(std::launch::async, [&] { return ReadAll(pair.a.get(), back.size()); });
    EXPECT_TRUE(ReadAll(pair.b.get(), there.size()) == there);
    EXPECT_TRUE(reads_back.get() == back);
    writes_there.get();
    writes_back.get();
  }
}

TEST(TlsStreamTest, WhatCameBeforeTheEndCounts) {
  auto [a, b] = test::ConnectedPair();
  Pair pair = Connect(std::move(a), std::move(b));
  const std::string text = RandomBytes(20'000, 1);
  WriteAll(pair.a.get(), text, 1);
  pair.a.reset();
  EXPECT_TRUE(ReadAll(pair.b.get(), text.size()) == text);
  char more;
  const iovec part = {&more, 1};
  EXPECT_EQ(pair.b->Read(&part, 1).status(), absl::UnavailableError("the connection has closed"));
  EXPECT_EQ(pair.b->Write(&part, 1), 0) << "and no SIGPIPE";
}

// Somebody between the two: what goes through is not what was sent, and a bit that they change is found.
TEST(TlsStreamTest, BytesAreSecretAndCannotBeChanged) {
  for (const bool flip : {false, true}) {
    auto [a, to_a] = test::ConnectedPair(1 << 20);
    auto [to_b, b] = test::ConnectedPair(1 << 20);
    const auto context = *TlsContext::Make("secret");
    const auto first = *context->NewStream(std::move(a), true);
    const auto second = *context->NewStream(std::move(b), false);
    std::string seen;
    const auto pass = [&](const UniqueFd& from, const UniqueFd& to, bool changed) {
      char bytes[65536];
      const ssize_t got = recv(from.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got <= 0) return;
      seen.append(bytes, static_cast<size_t>(got));
      if (changed) bytes[got / 2] = static_cast<char>(bytes[got / 2] ^ 1);
      SY_CHECK_EQ(send(to.get(), bytes, static_cast<size_t>(got), MSG_NOSIGNAL), got);
    };
    for (bool done = false; !done;) {
      const bool one = *first->Handshake();
      pass(to_a, to_b, false);
      done = *second->Handshake() && one;
      pass(to_b, to_a, false);
    }
    const std::string text(5000, 'x');
    WriteAll(first.get(), text, 1);
    pass(to_a, to_b, flip);
    EXPECT_THAT(seen, testing::Not(HasSubstr("xxxxxxxx")));
    if (!flip) {
      EXPECT_EQ(ReadAll(second.get(), text.size()), text);
      continue;
    }
    char bytes[5000];
    const iovec part = {bytes, sizeof(bytes)};
    const absl::Status changed = second->Read(&part, 1).status();
    EXPECT_EQ(changed.code(), absl::StatusCode::kFailedPrecondition) << changed;
    EXPECT_EQ(second->Read(&part, 1).status(), changed) << "again";
  }
}

}  // namespace
}  // namespace switchyard::comm
