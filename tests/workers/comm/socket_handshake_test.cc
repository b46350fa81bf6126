// Two ends of a new connection: who is taken for a peer, and what is said of who is not.
#include "workers/comm/tcp/socket_handshake.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "tests/workers/comm/comm_test_util.h"

namespace switchyard::comm {
namespace {

using testing::HasSubstr;

struct Party {
  GroupId id;
  std::string secret = "secret";
  bool encrypts = false;
};

// How it ended on both sides.
struct Ends {
  absl::StatusOr<bool> connecting = false, accepting = false;
};

class SocketHandshakeTest : public testing::TestWithParam<bool> {
 protected:
  Party Rank(int rank) const {
    return {.id = {.epoch = 7, .token = GroupTag("secret"), .rank = rank, .world = 3}, .encrypts = GetParam()};
  }
  // Ends when neither side goes on.
  Ends Meet(const Party& connects, const Party& accepts, int peer) {
    auto [a, b] = test::ConnectedPair();
    const auto context_a = connects.encrypts ? *TlsContext::Make(connects.secret) : nullptr;
    const auto context_b = accepts.encrypts ? *TlsContext::Make(accepts.secret) : nullptr;
    const SocketHandshake::Self self_a = {connects.id, connects.secret, context_a.get()};
    const SocketHandshake::Self self_b = {accepts.id, accepts.secret, context_b.get()};
    auto connecting = std::make_unique<SocketHandshake>(&self_a, std::move(a), peer);
    auto accepting = std::make_unique<SocketHandshake>(&self_b, std::move(b), -1);
    Ends ends;
    const auto go_on = [](std::unique_ptr<SocketHandshake>* handshake, absl::StatusOr<bool>* end) {
      if (!end->ok() || **end) return;
      *end = (*handshake)->Advance();
      if (!end->ok()) handshake->reset();  // closes
    };
    for (int turn = 0; turn < 20; ++turn) {
      go_on(&connecting, &ends.connecting);
      go_on(&accepting, &ends.accepting);
    }
    return ends;
  }
};
INSTANTIATE_TEST_SUITE_P(Links, SocketHandshakeTest, testing::Bool(),
                         [](const auto& i) { return i.param ? "Encrypted" : "Plain"; });

TEST_P(SocketHandshakeTest, RanksOfAGroupAreProven) {
  const Ends ends = Meet(Rank(2), Rank(1), 1);
  ASSERT_TRUE(ends.connecting.ok() && ends.accepting.ok()) << ends.connecting.status() << ends.accepting.status();
  EXPECT_TRUE(*ends.connecting && *ends.accepting);
}

TEST_P(SocketHandshakeTest, AnotherSecretIsAStranger) {
  Party other = Rank(2);
  other.secret = "secreu";
  const Ends ends = Meet(other, Rank(1), 1);
  // In plain it has the right tag here, and sees first that the other's secret is not its own.
  EXPECT_EQ((GetParam() ? ends.accepting : ends.connecting).status().message(),
            GetParam() ? "it does not know the group's secret: a stranger"
                       : "it does not prove that it knows the group's secret: a stranger");
  EXPECT_FALSE(ends.accepting.ok() && *ends.accepting);
}

// It knows the group's public tag and its name for the key, but not the secret.
TEST_P(SocketHandshakeTest, TheConnectingSideWantsAProofToo) {
  Party other = Rank(1);
  other.secret = "secreu";
  const Ends ends = Meet(Rank(2), other, 1);
  EXPECT_FALSE(ends.connecting.ok() && *ends.connecting);
  EXPECT_FALSE(ends.accepting.ok() && *ends.accepting);
  EXPECT_FALSE(ends.connecting.ok());
}

TEST_P(SocketHandshakeTest, WhatASideSaysOfItselfIsChecked) {
  Party epoch = Rank(2), world = Rank(2), lower = Rank(0), beyond = Rank(2);
  epoch.id.epoch = 6;
  world.id.world = 4;
  beyond.id.rank = 9;
  EXPECT_THAT(std::string(Meet(epoch, Rank(1), 1).accepting.status().message()), HasSubstr("in epoch 6, expected"));
  EXPECT_THAT(std::string(Meet(world, Rank(1), 1).accepting.status().message()), HasSubstr("rank 2 of 4 in epoch 7"));
  EXPECT_EQ(Meet(lower, Rank(1), 1).accepting.status().message(), "it says it is rank 0");
  EXPECT_EQ(Meet(beyond, Rank(1), 1).accepting.status().message(), "it says it is rank 9");
  // Another rank than the one that the store has there, as if somebody led the connection elsewhere.
  EXPECT_THAT(std::string(Meet(Rank(2), Rank(1), 0).connecting.status().message()),
              HasSubstr("frame of rank 1 of 3 in epoch 7, expected rank 0"));
}

TEST(SocketHandshakeModesTest, APlainSideAndAnEncryptingOneSaySo) {
  for (const bool connecting_encrypts : {false, true}) {
    const GroupId id = {.epoch = 7, .token = GroupTag("secret"), .rank = 0, .world = 2};
    const auto tls = *TlsContext::Make("secret");
    GroupId id_a = id;
    id_a.rank = 1;
    const SocketHandshake::Self connects = {id_a, "secret", connecting_encrypts ? tls.get() : nullptr};
    const SocketHandshake::Self accepts = {id, "secret", connecting_encrypts ? nullptr : tls.get()};
    auto [a, b] = test::ConnectedPair();
    SocketHandshake connecting(&connects, std::move(a), 0), accepting(&accepts, std::move(b), -1);
    ASSERT_TRUE(connecting.Advance().ok());
    const absl::StatusOr<bool> end = accepting.Advance();
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.status().message(), connecting_encrypts
                                          ? "it encrypts, and this group's links are plain (--encrypt_links)"
                                          : "it does not encrypt, as --encrypt_links wants it");
  }
}

TEST(GroupSecretTest, WhatIsDerivedTellsUsesAndSecretsApart) {
  EXPECT_EQ(GroupTag("secret"), GroupTag("secret"));
  EXPECT_NE(GroupTag("secret"), GroupTag("secret/watch"));
  EXPECT_NE(LinkKey("secret"), DigestUnder("secret", "switchyard group", ""));
  EXPECT_NE(DigestUnder("secret", "a", "b"), DigestUnder("secret", "a", "c"));
  EXPECT_NE(DrawNonce(), DrawNonce());
  // HMAC-SHA256 under "key" of "label", NUL, "The quick brown fox"; made with `openssl dgst -sha256 -hmac key`.
  const Digest digest = DigestUnder("key", "label", "The quick brown fox");
  EXPECT_EQ(absl::BytesToHexString(BytesOf(digest)),
            "bac854737c7a7422da3129054b0d2fcd511744d68110dc4d0e1d1c21b0a8c650");
}

}  // namespace
}  // namespace switchyard::comm
