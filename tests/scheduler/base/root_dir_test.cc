#include "scheduler/base/io/root_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/io/errno_status.h"
#include "scheduler/base/io/model_dir.h"
#include "tests/no_descriptors.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

class RootDirTest : public testing::Test {
 protected:
  RootDirTest() {
    char folder[] = "/tmp/root_dir_XXXXXX";
    base_ = mkdtemp(folder);
    mkdir((base_ + "/root").c_str(), 0755);
    mkdir((base_ + "/root/in").c_str(), 0755);
    Write("root/in/file", "inside");
    Write("secret", "outside");
  }
  ~RootDirTest() override { std::filesystem::remove_all(base_); }

  void Write(const std::string& name, const std::string& text) { std::ofstream(base_ + "/" + name) << text; }
  void Link(const std::string& target, const std::string& name) {
    ASSERT_EQ(symlink(target.c_str(), (base_ + "/root/" + name).c_str()), 0);
  }
  RootDir Root() { return *RootDir::Open(base_ + "/root", "the dataset root"); }

  std::string base_;
};

TEST_F(RootDirTest, ReadsWhatIsBeneath) {
  Link("in/file", "link");
  EXPECT_EQ(*Root().ReadSmallFile("in/file", 100), "inside");
  EXPECT_EQ(*Root().ReadSmallFile("link", 100), "inside");
  EXPECT_THAT(std::string(Root().ReadSmallFile("in/file", 5).status().message()), HasSubstr("6 bytes, limit 5"));
}

TEST_F(RootDirTest, OpensNothingOutside) {
  Link("../secret", "out");
  Link(base_ + "/secret", "absolute");
  Link("..", "up");
  Link("/proc/self/fd/0", "magic");
  for (const char* name : {"out", "absolute", "up/secret", "../secret", "magic", "in/../../secret"}) {
    const absl::Status status = Root().ReadSmallFile(name, 100).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("path must be under the dataset root")) << name;
  }
  EXPECT_EQ(Root().ReadSmallFile(base_ + "/secret", 100).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RootDirTest, OpensOnlyRegularFilesAndFolders) {
  ASSERT_EQ(mkfifo((base_ + "/root/fifo").c_str(), 0600), 0);
  EXPECT_EQ(Root().OpenFile("fifo").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Root().OpenFile("in").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Root().OpenFolder("in/file").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Root().OpenFile("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Root().OpenFile(std::string("in/file\0x", 9)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Root().OpenFile("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RootDir::Open(base_ + "/secret", "the dataset root").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RootDirTest, KnowsWhichFilesAreThere) {
  Link("../secret", "out");
  EXPECT_TRUE(Root().HasFile("in/file"));
  for (const char* name : {"in", "none", "out", ""}) EXPECT_FALSE(Root().HasFile(name)) << name;
}

// They may be free again later, unlike room on a disk that is full.
TEST_F(RootDirTest, ShortDescriptorsAreNoFullDisk) {
  const RootDir root = Root();
  const absl::StatusOr<ModelDir> model = ModelDir::Beneath(root, "in");
  ASSERT_TRUE(model.ok()) << model.status();
  const NoDescriptors none;
  for (const absl::Status& status :
       {root.OpenFile("in/file").status(), root.OpenFolder("in").status(), model->OpenFile("file").status(),
        RootDir::Open(base_ + "/root", "the dataset root").status(), ErrnoStatus(EMFILE, "file")}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Too many open files"));
  }
}

// Closing any descriptor of a file drops the locks that the process has on it, so a file must not be opened to see what
// it is.
TEST_F(RootDirTest, AFileThatIsNoFolderKeepsItsLocks) {
  const int fd = open((base_ + "/root/in/file").c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(fcntl(fd, F_SETLK, &lock), 0);
  EXPECT_EQ(Root().OpenFolder("in/file").status().code(), absl::StatusCode::kInvalidArgument);
  const pid_t child = fork();
  if (child == 0) _exit(fcntl(fd, F_SETLK, &lock) == 0 ? 1 : 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "another process got the lock";
  close(fd);
}

TEST_F(RootDirTest, MakesFoldersBeneath) {
  ASSERT_TRUE(Root().MakeFolders("a/b/c").ok());
  ASSERT_TRUE(Root().MakeFolders("a/b/c").ok());
  const absl::StatusOr<int> fd = Root().OpenAs("a/b/c/new", O_WRONLY | O_CREAT | O_EXCL, 0644);
  ASSERT_TRUE(fd.ok()) << fd.status();
  close(*fd);
  EXPECT_EQ(*Root().ReadSmallFile("a/b/c/new", 0), "");
  Link("..", "up");
  EXPECT_FALSE(Root().MakeFolders("up/there").ok());
  EXPECT_NE(access((base_ + "/there").c_str(), F_OK), 0);
  EXPECT_FALSE(Root().MakeFolders("in/file/x").ok());
}

TEST_F(RootDirTest, RootsThatOverlapAreSaid) {
  const auto said = [](const std::string& a, const std::string& b) {
    const absl::Status status = CheckRootsApart("--a", a, "--b", b);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  const std::string root = base_ + "/root", in = root + "/in";
  mkdir((base_ + "/rooted").c_str(), 0755);
  EXPECT_EQ(said(root, base_ + "/rooted"), "") << "a name that begins alike is another folder";
  EXPECT_EQ(said(root, root + "/../root/"),
            "--a=" + root + " is the same folder as --b=" + root + "/../root/: they must be apart");
  EXPECT_EQ(said(in, root), "--a=" + in + " is in --b=" + root + ": they must be apart");
  EXPECT_EQ(said(root, in), "--a=" + root + " holds --b=" + in + ": they must be apart");
  ASSERT_EQ(symlink(root.c_str(), (base_ + "/link").c_str()), 0);
  EXPECT_THAT(said(base_ + "/link/in", root), HasSubstr("/link/in is in --b="));
  EXPECT_EQ(said("", root), "");
  EXPECT_EQ(said(root, base_ + "/nowhere"), "") << "another error says that";
}

TEST_F(RootDirTest, FoldersThatCannotBeWrittenAreSaid) {
  EXPECT_TRUE(CheckWritableFolder("--a", "").ok());
  EXPECT_TRUE(CheckWritableFolder("--a", base_).ok());
  EXPECT_EQ(CheckWritableFolder("--a", base_ + "/secret").message(), "--a=" + base_ + "/secret: no such directory");
  if (geteuid() == 0) return;  // may write anywhere
  EXPECT_EQ(CheckWritableFolder("--a", "/proc").message(), "--a=/proc: cannot be written");
}

TEST_F(RootDirTest, KnowsFoldersInMemory) {
  EXPECT_FALSE(IsInMemory("/proc"));
  EXPECT_EQ(IsInMemory(base_ + "/nowhere/yet"), IsInMemory(base_));
  std::ifstream mounts("/proc/mounts");
  std::string mounted;
  for (std::string device, path, type, rest; mounts >> device >> path >> type && std::getline(mounts, rest);) {
    if (path == "/dev/shm") mounted = type;
  }
  if (!mounted.empty()) {
    EXPECT_EQ(IsInMemory("/dev/shm"), mounted == "tmpfs");
    EXPECT_EQ(IsInMemory("/dev/shm/nowhere/yet"), mounted == "tmpfs");
  }
}

}  // namespace
}  // namespace switchyard
