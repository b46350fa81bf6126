#include "server/keys/key_set.h"

#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/support/api_key.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string HashOf(const std::string& key) {
  return absl::StrCat("sha256:", absl::BytesToHexString(rpc::DigestOfKey(key)));
}

TEST(KeySetTest, LinesBecomeKeys) {
  const std::string text = absl::StrCat(
      "# who may call\n\nalice user ", HashOf("a"), " tokens_per_minute=900\r\n  bob\ttrainer  ", HashOf("b"),
      " requests_per_minute=6 disk_gib=5 tokens_per_minute=7\nroot.1_x-y admin ", HashOf("c"));
  const absl::StatusOr<KeySet> keys = KeySet::Parse(text, "keys");
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->keys().size(), 3u);
  for (const char* key : {"a", "b", "c"})
    ASSERT_NE(keys->Find(key), nullptr) << key;  // the first, the last, and between
  EXPECT_EQ(keys->Find("a")->name, "alice");
  EXPECT_EQ(keys->Find("a")->role, Role::kUser);
  EXPECT_EQ(keys->Find("a")->requests_per_minute, 0);
  EXPECT_EQ(keys->Find("a")->tokens_per_minute, 900);
  EXPECT_EQ(keys->Find("b")->role, Role::kTrainer);
  EXPECT_EQ(keys->Find("b")->requests_per_minute, 6);
  EXPECT_EQ(keys->Find("b")->tokens_per_minute, 7);
  EXPECT_EQ(keys->Find("b")->disk_gib, 5);
  EXPECT_EQ(keys->Find("a")->disk_gib, 0);
  EXPECT_EQ(keys->Find("c")->name, "root.1_x-y");
  EXPECT_EQ(keys->Find("c")->role, Role::kAdmin);
  EXPECT_EQ(keys->Find("d"), nullptr);
  EXPECT_EQ(keys->Find(""), nullptr);
  EXPECT_EQ(keys->Find(HashOf("a")), nullptr);  // who knows the file has no key
}

TEST(KeySetTest, EachBadLineIsNamed) {
  const std::string hash = HashOf("a");
  const std::pair<std::string, const char*> kBad[] = {
      {"alice user", "keys:1: must be NAME ROLE"},
      {"al*ce user " + hash, "keys:1: the name"},
      {std::string(65, 'n') + " user " + hash, "keys:1: the name"},
      {"alice root " + hash, "keys:1: the role"},
      {"alice User " + hash, "keys:1: the role"},
      {"alice user " + hash.substr(7), "keys:1: the hash"},
      {"alice user " + hash + "0", "keys:1: the hash"},
      {"alice user " + hash.substr(0, hash.size() - 1) + "g", "keys:1: the hash"},
      {"alice user " + hash + " tokens=4", "keys:1: after the hash"},
      {"alice user " + hash + " # mine", "keys:1: after the hash"},
      {"alice user " + hash + " tokens_per_minute=0", "keys:1: a quota must be"},
      {"alice user " + hash + " tokens_per_minute=x", "keys:1: a quota must be"},
      {"alice user " + hash + " disk_gib=0", "keys:1: a quota must be a whole number in [1, 1073741824]"},
      {"alice user " + hash + " disk_gib=1073741825", "keys:1: a quota must be"},
      {"alice user " + hash + " disk_gib=1 disk_gib=2", "keys:1: a quota is given twice"},
      {"alice user " + hash + " requests_per_minute=-1", "keys:1: a quota must be"},
      {"alice user " + hash + " requests_per_minute=1 requests_per_minute=1", "keys:1: a quota is given twice"},
      {"alice user " + hash + "\nalice user " + HashOf("b"), "keys:2: has the name of line 1"},
      {"alice user " + hash + "\nbob user " + hash, "keys:2: has the key of line 1"},
      {"# nothing", "keys: has no keys"},
      {"", "keys: has no keys"},
  };
  for (const auto& [text, problem] : kBad) {
    const absl::StatusOr<KeySet> keys = KeySet::Parse(text, "keys");
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_EQ(keys.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(keys.status().message()), HasSubstr(problem)) << text;
  }
}

TEST(KeySetTest, AllBadLinesAtOnceAndWithoutWhatTheySay) {
  const absl::StatusOr<KeySet> keys =
      KeySet::Parse("sy-secret\nalice sy-secret x\nbob user sy-secret\nsy-secret user sy-secret sy-secret", "keys");
  const std::string text(keys.status().message());
  for (const char* line : {"keys:1:", "keys:2:", "keys:3:", "keys:4:"}) EXPECT_THAT(text, HasSubstr(line));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

TEST(KeySetTest, TooManyKeysAreNamed) {
  std::string text;
  for (size_t i = 0; i <= KeySet::kMostKeys; ++i)
    absl::StrAppend(&text, "k", i, " user ", HashOf(absl::StrCat(i)), "\n");
  EXPECT_THAT(std::string(KeySet::Parse(text, "keys").status().message()),
              HasSubstr("keys:1001: too many keys, limit 1000"));
}

TEST(KeySetTest, OnlyAPrivateRegularFileIsRead) {
  const model::TempDir dir;
  const auto why = [](const std::string& path) { return std::string(KeySet::Read(path).status().message()); };
  const std::string file = dir.Write("keys", "alice user " + HashOf("a"));
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    EXPECT_THAT(why(file), HasSubstr("others than its owner may use it")) << mode;
  }
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  EXPECT_TRUE(KeySet::Read(file).ok());
  ASSERT_EQ(chmod(file.c_str(), 0400), 0);
  EXPECT_TRUE(KeySet::Read(file).ok());
  EXPECT_THAT(why(dir.path()), HasSubstr("not a regular file"));
  EXPECT_THAT(why(dir.File("none")), HasSubstr("cannot be read"));
  ASSERT_EQ(mkfifo(dir.File("fifo").c_str(), 0600), 0);
  EXPECT_THAT(why(dir.File("fifo")), HasSubstr("not a regular file"));  // and does not wait for a writer
  const std::string large = dir.Write("large", std::string(KeySet::kMostBytes + 1, '#'));
  ASSERT_EQ(chmod(large.c_str(), 0600), 0);
  EXPECT_THAT(why(large), HasSubstr("has more"));
}

}  // namespace
}  // namespace switchyard::server
