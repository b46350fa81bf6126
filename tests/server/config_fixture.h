// A configuration whose model is a folder of the test's own, for tests of flags.
#pragma once

#include "gtest/gtest.h"
#include "server/config.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {

class ConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_.Write("config.json", "{}");
    config_.model = dir_.path();
  }
  model::TempDir dir_;
  ServerConfig config_;
};

}  // namespace switchyard::server
