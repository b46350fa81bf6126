// The files of the web page, which CMake has put into the binary (embed.cmake).
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::server {

struct PageFile {
  absl::string_view path;  // "/" is the page itself
  absl::string_view type;  // its media type
  absl::string_view text;
};

absl::Span<const PageFile> PageFiles();

}  // namespace switchyard::server
