#include "workers/comm/group/subgroup.h"

#include <algorithm>
#include <utility>

#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::comm {
namespace {

// Maps the parent's received messages to the subgroup's ranks.
class SubgroupWork : public OnceWork {
 public:
  SubgroupWork(std::unique_ptr<Work> inner, std::vector<int> members)
      : inner_(std::move(inner)), members_(std::move(members)) {}

 private:
  absl::Status Finish() override {
    RETURN_IF_ERROR(inner_->Wait());
    received_.resize(members_.size());
    for (size_t i = 0; i < members_.size(); ++i) received_[i] = std::move(inner_->received()[members_[i]]);
    return absl::OkStatus();
  }

  std::unique_ptr<Work> inner_;
  const std::vector<int> members_;
};

class Subgroup : public Communicator {
 public:
  Subgroup(Communicator* parent, std::shared_ptr<MessagePool> pool, std::vector<int> members, uint32_t split_id,
           const GroupId& group)
      : Communicator(group, std::move(pool)), parent_(parent), members_(std::move(members)), split_id_(split_id) {}

  void Abort(absl::string_view reason) override { parent_->Abort(reason); }
  absl::Status status() const override { return parent_->status(); }

  WorkOr StartExchange(Exchange exchange) override {
    Exchange mapped = parent_->NewExchange(exchange.key, exchange.deadline);
    // A split of this split has its own number, which is unique in the whole group.
    mapped.split = exchange.split != 0 ? exchange.split : split_id_;
    mapped.round = exchange.round;
    if (exchange.key.root >= 0) {
      mapped.key.root = static_cast<int16_t>(members_[static_cast<size_t>(exchange.key.root)]);
    }
    for (size_t i = 0; i < members_.size(); ++i) mapped.out[members_[i]] = std::move(exchange.out[i]);
    mapped.send_to = InParent(exchange.send_to);
    mapped.recv_from = InParent(exchange.recv_from);
    for (const LaterFrames& later : exchange.later) {
      mapped.later.push_back({later.sequence, InParent(later.recv_from)});
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Work> work, parent_->StartExchange(std::move(mapped)));
    return std::make_unique<SubgroupWork>(std::move(work), members_);
  }

 protected:
  uint32_t split_id() const override { return split_id_; }

 private:
  std::vector<uint8_t> InParent(const std::vector<uint8_t>& of_members) const {
    std::vector<uint8_t> of_all(static_cast<size_t>(parent_->world()), 0);
    for (size_t i = 0; i < members_.size(); ++i) of_all[static_cast<size_t>(members_[i])] = of_members[i];
    return of_all;
  }

  Communicator* const parent_;
  const std::vector<int> members_;
  const uint32_t split_id_;
};

}  // namespace

std::unique_ptr<Communicator> MakeSubgroup(Communicator* parent, std::shared_ptr<MessagePool> pool,
                                           std::vector<int> members, uint32_t split_id) {
  const auto me = std::find(members.begin(), members.end(), parent->rank());
  SY_CHECK(me != members.end());
  GroupId group = parent->group();
  group.rank = static_cast<int>(me - members.begin());
  group.world = static_cast<int>(members.size());
  return std::make_unique<Subgroup>(parent, std::move(pool), std::move(members), split_id, group);
}

}  // namespace switchyard::comm
