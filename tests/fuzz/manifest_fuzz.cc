// A checkpoint's MANIFEST.json, with the seal that it should end in put behind it; LATEST; ranks' records of files.
// What is read is written as a text that is read as the same.
#include "tests/fuzz/fuzz.h"
#include "workers/checkpoint/manifest/manifest.h"

namespace switchyard::fuzz {

void Fuzz(absl::string_view input) {
  const std::string sealed = absl::StrCat(input, ",\"manifest_sha256\":\"", checkpoint::Sha256Hex(input), "\"}\n");
  if (const auto manifest = checkpoint::DecodeManifest(sealed); manifest.ok()) {
    const std::string own = checkpoint::EncodeManifest(*manifest);
    const auto again = checkpoint::DecodeManifest(own);
    SY_CHECK_OK(again.status());
    SY_CHECK_EQ(checkpoint::EncodeManifest(*again), own);
    SY_CHECK(again->files == manifest->files);
  }
  SY_CHECK(!checkpoint::DecodeManifest(input).ok() || input.back() == '\n');
  if (const auto records = checkpoint::DecodeFileRecords(input); records.ok()) {
    const auto again = checkpoint::DecodeFileRecords(checkpoint::EncodeFileRecords(*records));
    SY_CHECK_OK(again.status());
    SY_CHECK(*again == *records);
  }
  for (const std::string& text : {std::string(input), absl::StrCat(input, "\n")}) {
    if (const auto latest = checkpoint::DecodeLatest(text); latest.ok()) {
      SY_CHECK_EQ(checkpoint::EncodeLatest(*latest), text);
      SY_CHECK(checkpoint::StepOfFolder(latest->folder) >= 0);
    }
  }
  if (const int64_t step = checkpoint::StepOfFolder(input); step >= 0) SY_CHECK_EQ(checkpoint::StepFolder(step), input);
}

}  // namespace switchyard::fuzz
