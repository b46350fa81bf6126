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
  bool in_context = false;    // also from a mean of the rows before in the text (workers/moe/popularity/text_context.h)
  int64_t num_rows = 0;       // that it was fitted on
  std::vector<float> values;  // [E, WidthOf(hidden)], the bias last; finite
  // The same with a hidden layer of U units (workers/moe/popularity/hidden_probe.h), which is run in place of `values`.
  // Only maps in context have one; U = 0: there is none.
  int64_t num_units = 0;
  std::vector<float> network = {};  // [E + U, WidthOf(hidden)], the units' rows below the experts'; then [E, U]; finite

  // H + 1; in context 2H + 1: the row, the mean, the bias.
  int64_t WidthOf(int64_t hidden) const { return (in_context ? 2 : 1) * hidden + 1; }
  int64_t NetworkSizeOf(int64_t hidden, int64_t num_experts) const {
    return num_units == 0 ? 0 : (num_experts + num_units) * WidthOf(hidden) + num_experts * num_units;
  }
};

struct ProfileBundle {
  std::string model;  // the served weights' hash
  RoutingShape shape;
  int hidden = 0;                     // H of the maps; 0 without any
  std::vector<PathProfile> profiles;  // at most one of each phase, context and channel
  std::vector<ProbeMap> maps;         // by rising (layer, ahead, in_context)

  // The file:
  //   bytes          what
  //   8              "SYBUND03"; read, too: "SYBUND02", whose maps have no u32 units, and "SYBUND01", nor in_context
  //   string         model: u32 length, then that many bytes
  //   4 x u32        L, E, K, H
  //   u32            profiles P
  //   P times        u64 length, then that many bytes (path_profile.h)
  //   u32            maps N
  //   N times        u32 layer, u32 ahead, u32 in_context (0 or 1), u32 units U (0 unless in context), u64 rows,
  //                  E x (H + 1 or 2H + 1) x f32; unless U = 0: (E + U) x (2H + 1) x f32, E x U x f32
  //   u64            FNV-1a of all bytes before
  // Little-endian, unaligned.
  std::string Serialize() const;
  // InvalidArgument with what is wrong at which byte, or in which profile or map.
  static absl::StatusOr<ProfileBundle> Parse(absl::string_view bytes);

  // Adds another worker's or run's: counts add, and maps become the mean weighted by their rows (as good as a fit over
  // all: Zhang, Duchi, Wainwright, "Divide and Conquer Kernel Ridge Regression", 2013).  Where any of two maps has a
  // network, the network that was fitted on more rows stays as it is.  InvalidArgument, and nothing has changed, for
  // another model or shape, and for sums larger than can be read.
  absl::Status Merge(const ProfileBundle& other);
};

// InvalidArgument names the first of model, num_layers, num_experts, top_k and hidden that differs; hidden 0 fits any.
absl::Status CheckSameModel(const ProfileBundle& expected, const ProfileBundle& actual);

}  // namespace switchyard::popularity
