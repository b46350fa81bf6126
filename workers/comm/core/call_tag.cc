#include "workers/comm/core/call_tag.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"

namespace switchyard::comm {
namespace {

constexpr int kPartBits = 14, kUseShift = 28;
static_assert(kCallParts == 1 << kPartBits && kCallLayers == 1 << (kUseShift - kPartBits));
static_assert(kNumCallUses == 1 << (32 - kUseShift), "each value has a name");

constexpr const char* kNames[kNumCallUses] = {"",
                                              "the counts for the dispatch of MoE layer",
                                              "the dispatch of MoE layer",
                                              "the combine of MoE layer",
                                              "the outputs' gradients of MoE layer",
                                              "the inputs' gradients of MoE layer",
                                              "the counts for the capacity of MoE layer",
                                              "the facts for the placement of MoE layer",
                                              "the placement of MoE layer",
                                              "the repacked experts of layer",
                                              "the gather of rows of MoE layer",
                                              "the sum of rows of MoE layer",
                                              "the sum of gradients",
                                              "the sum of experts' gradients",
                                              "the transferred rows, exchange",
                                              "the measuring of links, size"};

constexpr uint32_t kNumberMask = (1u << kUseShift) - 1;

bool IsNumbered(CallUse use) { return use >= CallUse::kGradientSum; }

}  // namespace

uint32_t CallTag(CallUse use, int64_t layer, int64_t part) {
  SY_CHECK(use != CallUse::kNumber && !IsNumbered(use) && layer >= 0 && part >= 0);
  return static_cast<uint32_t>(use) << kUseShift | static_cast<uint32_t>(layer % kCallLayers) << kPartBits |
         static_cast<uint32_t>(part % kCallParts);
}

uint32_t NumberedTag(CallUse use, int64_t number) {
  SY_CHECK(IsNumbered(use) && number >= 0);
  return static_cast<uint32_t>(use) << kUseShift | (static_cast<uint32_t>(number) & kNumberMask);
}

std::string CallPurpose(uint32_t tag) {
  const uint32_t use = tag >> kUseShift;
  if (use == 0) return absl::StrCat("with tag ", tag);
  if (IsNumbered(static_cast<CallUse>(use))) return absl::StrCat("for ", kNames[use], " ", tag & kNumberMask);
  const uint32_t part = tag % kCallParts;
  return absl::StrCat("for ", kNames[use], " ", (tag >> kPartBits) % kCallLayers,
                      part > 0 ? absl::StrCat(", part ", part) : "");
}

}  // namespace switchyard::comm
