// Profiles and bundles of them, with the checksum that their bytes should end in put behind them.  What is read is
// written as bytes that are read as the same, and can be merged with itself.
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/popularity/profile_bundle.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {
namespace {

std::string Sealed(absl::string_view bytes) {
  std::string sealed(bytes);
  AppendInt(Fnv1a(bytes), &sealed);
  return sealed;
}

void FuzzProfile(absl::string_view bytes) {
  for (const int64_t most : {4 << 10, 4 << 20}) {
    auto profile = popularity::PathProfile::Parse(bytes, {.max_bytes = most});
    if (!profile.ok()) continue;
    const std::string own = profile->Serialize();
    auto again = popularity::PathProfile::Parse(own, {.max_bytes = most});
    SY_CHECK_OK(again.status());
    SY_CHECK(again->Serialize() == own);
    const absl::Status merge = profile->CheckMerge(*again);
    SY_CHECK_EQ(profile->Merge(*again).ToString(), merge.ToString());
    if (merge.ok()) SY_CHECK_OK(popularity::PathProfile::Parse(profile->Serialize(), {.max_bytes = most}).status());
  }
}

void FuzzBundle(absl::string_view bytes) {
  auto bundle = popularity::ProfileBundle::Parse(bytes);
  if (!bundle.ok()) return;
  const std::string own = bundle->Serialize();
  const auto again = popularity::ProfileBundle::Parse(own);
  SY_CHECK_OK(again.status());
  SY_CHECK(again->Serialize() == own);
  if (const absl::Status merged = bundle->Merge(*again); !merged.ok()) {
    SY_CHECK(bundle->Serialize() == own);
  } else {
    SY_CHECK_OK(popularity::ProfileBundle::Parse(bundle->Serialize()).status());
  }
}

}  // namespace

// The input is a profile or bundle without its checksum; or a profile for a bundle with nothing else in it.
void Fuzz(absl::string_view input) {
  const std::string sealed = Sealed(input);
  FuzzProfile(sealed);
  FuzzBundle(sealed);
  const auto profile = popularity::PathProfile::Parse(sealed, {.max_bytes = 4 << 20});
  if (!profile.ok()) return;
  popularity::ProfileBundle bundle;
  bundle.model = profile->identity().model;
  bundle.shape = profile->identity().shape;
  bundle.profiles = {*profile};
  FuzzBundle(bundle.Serialize());
}

}  // namespace switchyard::fuzz
