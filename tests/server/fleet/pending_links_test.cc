// Links that do not register: bounded in number and in time.
#include "server/fleet/pending_links.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/server/fleet/group_fixture.h"

namespace switchyard::server {
namespace {

class PendingLinksTest : public testing::Test {
 protected:
  std::shared_ptr<FakeWorker> Enter(WorkerId id) {
    auto client = std::make_shared<FakeWorker>();
    EXPECT_TRUE(pending_links_.Enter(id, client, kLocal, now_).ok());
    return client;
  }
  absl::Status EnterFrom(WorkerId id, const std::string& peer) { return pending_links_.Enter(id, one_, peer, now_); }

  static constexpr char kLocal[] = "unix:";
  PendingLinks pending_links_;
  const std::shared_ptr<FakeWorker> one_ = std::make_shared<FakeWorker>();
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(PendingLinksTest, WhoDoesNotRegisterInTimeIsClosed) {
  const auto silent = Enter(1);
  const auto registers = Enter(2);
  auto gone = Enter(3);
  now_ += absl::Seconds(3);
  const auto later = Enter(4);
  pending_links_.Leave(2);
  gone.reset();
  now_ += absl::Seconds(2);
  pending_links_.CheckTime(now_);
  EXPECT_TRUE(silent->closed.ok()) << "five seconds are allowed";
  now_ += absl::Milliseconds(50);
  pending_links_.CheckTime(now_);
  EXPECT_EQ(silent->closed.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(silent->closed.message()), "the link did not register within 5s");
  EXPECT_TRUE(registers->closed.ok());
  EXPECT_TRUE(later->closed.ok());
  now_ += absl::Seconds(3);
  pending_links_.CheckTime(now_);
  EXPECT_FALSE(later->closed.ok());
}

TEST_F(PendingLinksTest, ManyAreTurnedAway) {
  const auto peer = [](size_t id) { return absl::StrCat("ipv4:10.0.", id / 100, ".", id % 100, ":1"); };
  for (size_t id = 1; id <= PendingLinks::kMaxWaiting; ++id)
    EXPECT_TRUE(EnterFrom(static_cast<WorkerId>(id), peer(id)).ok());
  EXPECT_EQ(std::string(EnterFrom(1000, peer(1000)).message()), "links that have not registered: limit 256");
  EXPECT_TRUE(EnterFrom(1001, kLocal).ok()) << "the server's own worker";
  pending_links_.Leave(1001);
  pending_links_.Leave(1001);
  EXPECT_FALSE(EnterFrom(1002, peer(1002)).ok());
  pending_links_.Leave(7);
  EXPECT_TRUE(EnterFrom(1003, peer(1003)).ok());
}

TEST_F(PendingLinksTest, OneClientHasItsShare) {
  for (WorkerId id = 1; id <= PendingLinks::kMaxOfClient; ++id)
    EXPECT_TRUE(EnterFrom(id, absl::StrCat("ipv4:10.0.0.1:", id)).ok());
  const absl::Status full = EnterFrom(100, "unix-abstract:ipv4:10.0.0.1:4711%23ab-7");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(full.message()), "links of one client that have not registered: limit 32");
  EXPECT_TRUE(EnterFrom(101, "ipv4:10.0.0.2:1").ok());
  EXPECT_TRUE(EnterFrom(102, kLocal).ok());
  pending_links_.Leave(1);
  EXPECT_TRUE(EnterFrom(103, "ipv4:10.0.0.1:1").ok());
  now_ += absl::Seconds(6);
  pending_links_.CheckTime(now_);
  EXPECT_TRUE(EnterFrom(104, "ipv4:10.0.0.1:1").ok()) << "those that were closed have left";
}

}  // namespace
}  // namespace switchyard::server
