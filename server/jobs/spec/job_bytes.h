// Estimates of the bytes that a job has on the disk, from its spec, its model and its data.
#pragma once

#include <cstdint>

#include "scheduler/base/io/root_dir.h"
#include "scheduler/jobs/job_spec.h"
#include "server/jobs/spec/model_check.h"

namespace switchyard::server {

// Returns the most bytes of checkpoints that exist at a time, including one being written, but without those that
// keep_every_steps keeps for ever.
double CheckpointBytes(const jobs::JobSpec& spec, const TrainedModelFacts& facts);

// Sizes of a job's data.
struct DataBytes {
  double tokens = 0;        // of the datasets, if they are .bin files
  double text = 0;          // bytes of the datasets' .jsonl files
  double text_to_pack = 0;  // bytes of all .jsonl files that the job has to pack, also of evaluation
  bool operator==(const DataBytes&) const = default;
};
// Opens the spec's files.  What cannot be opened does not count.  `datasets_packed`, `evaluation_packed`: the job has
// the tokens of this list's text already.  Blocks on the disk; thread-safe.
DataBytes ReadDataBytes(const jobs::JobSpec& spec, const RootDir& datasets, bool datasets_packed,
                        bool evaluation_packed);

// Returns what a job has in its folder at the end: CheckpointBytes, the checkpoints that keep_every_steps keeps, and
// its packed text.  A token of text is assumed to have a byte at least, and a quarter as many tokens to be in an epoch
// (English has some four bytes a token); logs are not counted, nor what dpo keeps of its reference (16 bytes a pair).
double JobBytes(const jobs::JobSpec& spec, const TrainedModelFacts& facts, const DataBytes& data);

}  // namespace switchyard::server
