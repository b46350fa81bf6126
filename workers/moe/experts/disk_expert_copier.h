// Reads experts from an expert file on a disk (expert_file.h) into slots in the host's memory, several chunks at once.
//
// Chunks must begin at multiples of kDirectAlignment of an expert, and slots must have room for a whole number of such
// blocks.  One thread at a time calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "workers/moe/experts/direct_reader.h"
#include "workers/moe/experts/expert_copier.h"

namespace switchyard::moe {

class DiskExpertCopier : public ExpertCopier {
 public:
  // Under way at once: more bring no more bytes a second, and what is wanted next waits for them.
  static constexpr int kDepth = 4;

  // offset: of an expert in the file.
  DiskExpertCopier(std::unique_ptr<DirectReader> reader, std::function<int64_t(const ExpertId&)> offset)
      : reader_(std::move(reader)), offset_(std::move(offset)), chunks_(kDepth) {
    for (uint64_t i = 0; i < kDepth; ++i) free_.push_back(i);
  }

  CopyPath path() const override { return reader_->past_page_cache() ? CopyPath::kDisk : CopyPath::kDiskCached; }
  int depth() const override { return kDepth; }
  void Start(const ExpertChunk& chunk) override {
    const uint64_t at = free_.back();
    free_.pop_back();
    chunks_[at] = chunk;
    reader_->Start({.offset = offset_(chunk.id) + chunk.offset,
                    .bytes = (chunk.bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment,
                    .to = chunk.to,
                    .tag = at});
  }
  Finished Await() override {
    DirectReader::Finished read = reader_->Await();
    free_.push_back(read.tag);
    return {chunks_[read.tag], std::move(read.status)};
  }

 private:
  const std::unique_ptr<DirectReader> reader_;
  const std::function<int64_t(const ExpertId&)> offset_;
  std::vector<ExpertChunk> chunks_;  // [kDepth] under way
  std::vector<uint64_t> free_;       // of chunks_
};

}  // namespace switchyard::moe
