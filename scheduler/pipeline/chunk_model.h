// The time of a MoE layer whose rows are cut into n chunks, by a closed formula over the times of its ops, and the n
// that is fastest by it.
//
// An all-to-all runs beside experts' products of another chunk, and copies to or from offload memory
// (restore_strategy.h) beside both.  A pass has five phases: the first dispatch; the first products; n - 2 times a
// dispatch and a combine beside products; the last products; the last combine.  Where several ops share a phase the
// longest counts, each divided by its speed beside the others.  Beside the event simulator, which runs the program of
// build_expert_parallel.h (scheduler/simulator/): with rows that are kept or computed again forward is the same, and
// backward longer by 7 % on average, never shorter; copies of hidden rows, and rows that are sent again, can make the
// program slower than the formula (chunk_model_test.cc).  Pure.
//
// Source: MPMoE, section III-D and Fig. 8 (scheduler/PAPERS.md).  Speeds beside copies are taken for 1.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/pipeline/restore_strategy.h"

namespace switchyard::pipeline {

// Seconds over bytes, or over rows: straight lines between measured points.
class TimeCurve {
 public:
  struct Point {
    double size = 0, seconds = 0;
    bool operator==(const Point&) const = default;
  };
  // One point is a line through zero; none: everything takes 0 s.  REQUIRES: sizes > 0, rising.
  explicit TimeCurve(std::vector<Point> points = {}) : points_(std::move(points)) {}
  // Beyond the points the first and last line go on; never below 0.
  double At(double size) const;

 private:
  std::vector<Point> points_;
};

// The speed of an op beside another, where 1 is its speed alone.
struct BesideSpeeds {
  double all_to_all = 1;  // beside products
  double experts = 1;     // beside an all-to-all
};

// Overlap takes longer than one after the other where a speed is no higher.
inline constexpr double kLeastSpeed = 0.5;

// Seconds of one chunk's ops.
struct ChunkTimes {
  double dispatch = 0, experts = 0, combine = 0, copy = 0;
};

// When a chunk's rows are copied.
enum class CopyOrder : uint8_t { kNone, kBehindExperts, kBeforeExperts };

// One pass of so many chunks.  REQUIRES: chunks >= 1, speeds > 0.
double PassSeconds(const ChunkTimes& times, int chunks, CopyOrder order, const BesideSpeeds& speeds);

// What a rank of an even share has of a layer's micro-batch.
struct LayerLoad {
  double dispatch_bytes = 0, combine_bytes = 0;  // that it sends
  double rows = 0;                               // of its experts
  double input_bytes = 0, hidden_bytes = 0;      // of these rows, before and inside experts
};

struct LayerTimes {
  TimeCurve all_to_all;  // over bytes that a rank sends
  TimeCurve experts;     // forward, over rows
  TimeCurve copy;        // over bytes
  BesideSpeeds beside;
};

class ChunkModel {
 public:
  ChunkModel(LayerTimes times, const LayerLoad& load, const RestoreStrategy& restore)
      : times_(std::move(times)), load_(load), restore_(restore) {}

  // Forward and backward.  REQUIRES: chunks >= 1.
  double Seconds(int chunks) const;
  // In [1, most]: the fewest chunks of the least time; 1 where overlap does not pay (kLeastSpeed).
  int Choose(int most) const;

 private:
  const LayerTimes times_;
  const LayerLoad load_;
  const RestoreStrategy restore_;
};

}  // namespace switchyard::pipeline
