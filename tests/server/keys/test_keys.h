// Keys of tests: the key of NAME is "key-NAME".
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/support/api_key.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {

// A line of a keys file.
inline std::string KeyLine(const std::string& name, const std::string& role, const std::string& quotas = "") {
  return absl::StrCat(name, " ", role, " sha256:", absl::BytesToHexString(rpc::DigestOfKey("key-" + name)), " ", quotas,
                      "\n");
}

// Writes the file `keys` of the folder; returns its path.
inline std::string WriteKeys(const model::TempDir& dir, const std::string& text) {
  const std::string path = dir.Write("keys", text);
  EXPECT_EQ(chmod(path.c_str(), 0600), 0);
  return path;
}

// A context of a call with the key of `name`; "": without one.
inline std::unique_ptr<grpc::ClientContext> ContextOf(const std::string& name) {
  auto context = std::make_unique<grpc::ClientContext>();
  if (!name.empty()) context->AddMetadata("authorization", "Bearer key-" + name);
  return context;
}

}  // namespace switchyard::server
