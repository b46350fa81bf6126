// ActivationOffload in memory that copies as late as it may: when a copy is finished.  What a program overwrites too
// early or reads too early is NaN or another chunk's.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "workers/moe/layer/activation_offload.h"

namespace switchyard::test {

class LateOffload : public moe::ActivationOffload {
 public:
  void StartSave(const moe::OffloadKey& key, absl::Span<const char> from) override { saves_[key] = from; }
  void StartRestore(const moe::OffloadKey& key, absl::Span<char> to) override {
    std::fill(to.begin(), to.end(), '\xff');  // NaN in every dtype
    restores_[key] = to;
  }
  absl::Status Finish(const moe::OffloadKey& key) override {
    if (fails_after_-- == 0) return absl::UnavailableError("the disk");
    if (const auto save = saves_.find(key); save != saves_.end()) {
      kept_[key].assign(save->second.begin(), save->second.end());
      saves_.erase(save);
      ++num_saves_;
      return absl::OkStatus();
    }
    const auto restore = restores_.find(key);
    if (restore == restores_.end()) return absl::InternalError("finishes what was not started");
    const std::string& kept = kept_.at(key);
    if (kept.size() != restore->second.size()) return absl::InternalError("restores another size than was saved");
    if (!kept.empty()) std::memcpy(restore->second.data(), kept.data(), kept.size());
    restores_.erase(restore);
    return absl::OkStatus();
  }
  void Drain() override {
    saves_.clear();
    restores_.clear();
  }

  void FailAfter(int copies) { fails_after_ = copies; }
  int num_saves() const { return num_saves_; }
  bool idle() const { return saves_.empty() && restores_.empty(); }

 private:
  std::map<moe::OffloadKey, absl::Span<const char>> saves_;
  std::map<moe::OffloadKey, absl::Span<char>> restores_;
  std::map<moe::OffloadKey, std::string> kept_;
  int num_saves_ = 0, fails_after_ = -1;
};

}  // namespace switchyard::test
