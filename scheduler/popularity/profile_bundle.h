// All that was learned of a model's routing, as one file: the profiles of both phases, and the fitted probe maps.
//
// `switchyard profile` writes it, workers read it at the start (--profile).  Every part is of the weights whose hash it
// has and of its shape, or the bundle is refused.  Plain data and bytes; knows no files, and does not fit
// (workers/moe).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/popularity/path_profile.h"

namespace switchyard::popularity {

// A map from the rows that enter layer's experts to the router logits of layer + ahead.
struct ProbeMap {
  int layer = 0;
  int ahead = 1;              // 1 or 2
  int64_t num_rows = 0;       // that it was fitted on
  std::vector<float> values;  // [E, H + 1], the bias last; finite
};

struct ProfileBundle {
  std::string model;  // the served weights' hash
  RoutingShape shape;
  int hidden = 0;                     // H of the maps; 0 without any
  std::vector<PathProfile> profiles;  // at most one of each phase, context and channel
  std::vector<ProbeMap> maps;         // by rising (layer, ahead)

  // The file:
  //   bytes          what
  //   8              "SYBUND01"
  //   string         model: u32 length, then that many bytes
  //   4 x u32        L, E, K, H
  //   u32            profiles P
  //   P times        u64 length, then that many bytes (path_profile.h)
  //   u32            maps N
  //   N times        u32 layer, u32 ahead, u64 rows, E x (H + 1) x f32
  //   u64            FNV-1a of all bytes before
  // Little-endian, unaligned.
  std::string Serialize() const;
  // InvalidArgument with what is wrong at which byte, or in which profile or map; "SYBUND02" and "SYBUND03", which had
  // maps of other kinds.
  static absl::StatusOr<ProfileBundle> Parse(absl::string_view bytes);

  // Adds another worker's or run's: counts add, and maps become the mean weighted by their rows (as good as a fit over
  // all: Zhang, Duchi, Wainwright, "Divide and Conquer Kernel Ridge Regression", 2013).  InvalidArgument, and nothing
  // has changed, for another model or shape, and for sums larger than can be read.
  absl::Status Merge(const ProfileBundle& other);
};

// InvalidArgument names the first of model, num_layers, num_experts, top_k and hidden that differs; hidden 0 fits any.
absl::Status CheckSameModel(const ProfileBundle& expected, const ProfileBundle& actual);

}  // namespace switchyard::popularity
