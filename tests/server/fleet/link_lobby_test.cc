// Links that do not register: bounded in number and in time.
#include "server/fleet/link_lobby.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/fleet/group_fixture.h"

namespace switchyard {
namespace {

class LinkLobbyTest : public testing::Test {
 protected:
  std::shared_ptr<FakeWorker> Enter(WorkerId id) {
    auto client = std::make_shared<FakeWorker>();
    EXPECT_TRUE(lobby_.Enter(id, client, now_));
    return client;
  }
  LinkLobby lobby_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(LinkLobbyTest, WhoDoesNotRegisterInTimeIsClosed) {
  const auto silent = Enter(1);
  const auto registers = Enter(2);
  auto gone = Enter(3);
  now_ += absl::Seconds(3);
  const auto later = Enter(4);
  lobby_.Leave(2);
  gone.reset();
  now_ += absl::Seconds(2);
  lobby_.CheckTime(now_);
  EXPECT_TRUE(silent->closed.ok()) << "five seconds are allowed";
  now_ += absl::Milliseconds(50);
  lobby_.CheckTime(now_);
  EXPECT_EQ(silent->closed.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(silent->closed.message()), "the link did not register within 5s");
  EXPECT_TRUE(registers->closed.ok());
  EXPECT_TRUE(later->closed.ok());
  now_ += absl::Seconds(3);
  lobby_.CheckTime(now_);
  EXPECT_FALSE(later->closed.ok());
}

TEST_F(LinkLobbyTest, ManyAreTurnedAway) {
  std::vector<std::shared_ptr<FakeWorker>> clients;
  for (size_t id = 1; id <= LinkLobby::kMaxWaiting; ++id) clients.push_back(Enter(static_cast<WorkerId>(id)));
  EXPECT_FALSE(lobby_.Enter(1000, clients[0], now_));
  lobby_.Leave(7);
  EXPECT_TRUE(lobby_.Enter(1001, clients[0], now_));
}

}  // namespace
}  // namespace switchyard
