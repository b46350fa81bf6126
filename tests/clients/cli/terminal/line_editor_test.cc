// The prompt on a pseudo-terminal: the test types at its other end.
#include "clients/cli/terminal/line_editor.h"

#include <fcntl.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace switchyard::cli {
namespace {

using End = LineEditor::Line::End;

class LineEditorTest : public testing::Test {
 protected:
  LineEditorTest() {
    setenv("TERM", "xterm", 1);
    setenv("EDITRC", "/dev/null", 1);
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = 80;
    EXPECT_EQ(openpty(&person_, &terminal_, nullptr, nullptr, &size), 0);
    editor_ = LineEditor::Open(terminal_, terminal_, "you> ");
    EXPECT_NE(editor_, nullptr);
    screen_ = std::thread([this] { ReadScreen(); });
  }
  ~LineEditorTest() override {
    editor_ = nullptr;
    close(terminal_);  // ends the screen's thread
    screen_.join();
    close(person_);
  }

  // Reads a line, for which a person types these keys.
  LineEditor::Line Typed(const std::string& keys) {
    ++reads_;
    std::thread fingers([this, &keys] {
      WaitForPrompt();
      for (size_t at = 0; at < keys.size();) {
        const ssize_t written = write(person_, keys.data() + at, keys.size() - at);
        if (written <= 0) return;
        at += static_cast<size_t>(written);
      }
    });
    LineEditor::Line line = editor_->Read();
    fingers.join();
    return line;
  }
  std::string TextOf(const std::string& keys) {
    const LineEditor::Line line = Typed(keys);
    EXPECT_EQ(line.end, End::kEntered);
    if (line.end == End::kEntered) editor_->Remember(line.text);
    return line.text;
  }

  // Waits until the editor has shown as many prompts as were to be shown.
  void WaitForPrompt() {
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(
                                         +[](LineEditorTest* own) { return own->prompts_ >= own->reads_; }, this),
                                     absl::Seconds(30)));
  }

  int person_ = -1, terminal_ = -1;
  std::unique_ptr<LineEditor> editor_;
  int reads_ = 0;

 private:
  // Counts the prompts: before each the terminal is asked to mark what is pasted.
  void ReadScreen() {
    std::string seen;
    size_t from = 0;
    char bytes[4096];
    for (ssize_t got; (got = read(person_, bytes, sizeof(bytes))) > 0;) {
      seen.append(bytes, static_cast<size_t>(got));
      absl::MutexLock lock(&mu_);
      for (size_t at; (at = seen.find("\033[?2004h", from)) != std::string::npos; from = at + 1) ++prompts_;
    }
  }
  std::thread screen_;
  absl::Mutex mu_;
  int prompts_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(LineEditorTest, LinesAreEdited) {
  EXPECT_EQ(TextOf("hello\r"), "hello");
  EXPECT_EQ(TextOf("hallo\033[D\033[D\033[D\033[D\033[3~e\r"), "hello");  // left, delete
  EXPECT_EQ(TextOf("world\001hello \r"), "hello world");                  // Ctrl-A
  EXPECT_EQ(TextOf("one two\027three\r"), "one three");                   // Ctrl-W
  EXPECT_EQ(TextOf("\r"), "");
}

TEST_F(LineEditorTest, ArrowUpRecalls) {
  editor_->Remember("of an earlier run");
  EXPECT_EQ(TextOf("first\r"), "first");
  EXPECT_EQ(TextOf("second\r"), "second");
  EXPECT_EQ(TextOf("\033[A\033[A\r"), "first");
  EXPECT_EQ(TextOf("\033[A\033[A\033[B!\r"), "first!");
  EXPECT_EQ(TextOf("\022earlier\r"), "of an earlier run");  // Ctrl-R
}

TEST_F(LineEditorTest, TextIsUtf8InAnyLocale) {
  EXPECT_EQ(TextOf("grüße 日本 😀\r"), "grüße 日本 😀");
  EXPECT_EQ(TextOf("日本x\033[D\177\r"), "日x");  // one backspace removes a character of three bytes
  EXPECT_EQ(TextOf("\033[A\r"), "日x");
  EXPECT_EQ(TextOf("a\xff\xc3(b\r"), "a\uFFFD\uFFFD(b");
}

TEST_F(LineEditorTest, APasteIsOneLine) {
  EXPECT_EQ(TextOf("\033[200~def f():\r\treturn 1\r\033[201~  # why?\r"), "def f():\n\treturn 1  # why?");
  EXPECT_EQ(TextOf("\033[A\r"), "def f():\n\treturn 1  # why?");
  EXPECT_EQ(TextOf("\033[200~\033[31mred\033[0m\033[201~\r"), "[31mred[0m");  // no control characters
  EXPECT_EQ(TextOf("a\033\rb\r"), "a\nb");                                    // Alt-Enter
  EXPECT_EQ(TextOf("\033[200~\033[201~x\r"), "x");
}

TEST_F(LineEditorTest, APasteIsBounded) {
  const std::string pasted(LineEditor::kMostPastedBytes + 1000, 'x');
  EXPECT_EQ(TextOf(absl::StrCat("\033[200~", pasted, "\033[201~\001y\r")).size(), LineEditor::kMostPastedBytes + 1);
}

TEST_F(LineEditorTest, AnInterruptDropsTheLine) {
  editor_->Interrupt();  // before Read, too
  EXPECT_EQ(editor_->Read().end, End::kInterrupted);
  reads_ = 2;
  std::thread other([this] {
    WaitForPrompt();
    EXPECT_EQ(write(person_, "half", 4), 4);
    editor_->Interrupt();
  });
  EXPECT_EQ(editor_->Read().end, End::kInterrupted);
  other.join();
  tcflush(terminal_, TCIFLUSH);
  EXPECT_EQ(TextOf("whole\r"), "whole");
}

TEST_F(LineEditorTest, CtrlDEnds) {
  EXPECT_EQ(Typed("\004").end, End::kClosed);
  EXPECT_EQ(TextOf("goes on\r"), "goes on");
}

TEST_F(LineEditorTest, TheTerminalIsAsItWas) {
  termios before = {}, after = {};
  ASSERT_EQ(tcgetattr(terminal_, &before), 0);
  EXPECT_EQ(TextOf("x\r"), "x");
  ASSERT_EQ(tcgetattr(terminal_, &after), 0);
  EXPECT_EQ(before.c_lflag, after.c_lflag);
  EXPECT_EQ(before.c_iflag, after.c_iflag);
  EXPECT_NE(after.c_lflag & ICANON, 0u);
}

TEST(LineEditorOpenTest, WantsATerminal) {
  setenv("TERM", "xterm", 1);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(LineEditor::Open(null, null, "you> "), nullptr);
  close(null);
  int person = -1, terminal = -1;
  ASSERT_EQ(openpty(&person, &terminal, nullptr, nullptr, nullptr), 0);
  setenv("TERM", "dumb", 1);
  EXPECT_EQ(LineEditor::Open(terminal, terminal, "you> "), nullptr);
  unsetenv("TERM");
  EXPECT_EQ(LineEditor::Open(terminal, terminal, "you> "), nullptr);
  close(person);
  close(terminal);
}

}  // namespace
}  // namespace switchyard::cli
