// Links that do not register: bounded in number and in time.
#include "server/fleet/pending_links.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/fleet/group_fixture.h"

namespace switchyard::server {
namespace {

class PendingLinksTest : public testing::Test {
 protected:
  std::shared_ptr<FakeWorker> Enter(WorkerId id) {
    auto client = std::make_shared<FakeWorker>();
    EXPECT_TRUE(pending_links_.Enter(id, client, now_));
    return client;
  }
  PendingLinks pending_links_;
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
  std::vector<std::shared_ptr<FakeWorker>> clients;
  for (size_t id = 1; id <= PendingLinks::kMaxWaiting; ++id) clients.push_back(Enter(static_cast<WorkerId>(id)));
  EXPECT_FALSE(pending_links_.Enter(1000, clients[0], now_));
  pending_links_.Leave(7);
  EXPECT_TRUE(pending_links_.Enter(1001, clients[0], now_));
}

}  // namespace
}  // namespace switchyard::server
