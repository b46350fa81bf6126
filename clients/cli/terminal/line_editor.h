// Prompt of a terminal with line editing, search and recall of earlier lines: libedit's, of which only this file's
// source knows.
//
// Keys are those of Emacs, as in most shells, or what ~/.editrc says.  A text that is pasted is one line of input, even
// if it has line breaks (of a terminal that marks pasted text, as nearly all do), and Alt-Enter begins a new line
// within it. Text is UTF-8, whatever the locale; bytes that are not become U+FFFD.
//
// Between two Reads the terminal is as it was before.  One thread reads; Interrupt is for any.  While one object reads,
// no other may, since it handles SIGWINCH and SIGCONT meanwhile.
#pragma once

#include <memory>
#include <string>

namespace switchyard::cli {

class LineEditor {
 public:
  static constexpr size_t kMostPastedBytes = 256 << 10;

  struct Line {
    enum class End { kEntered, kInterrupted, kClosed };  // kClosed: Ctrl-D, or the terminal is gone
    End end = End::kClosed;
    std::string text = {};  // without its last line break; only of kEntered
  };

  // in, out: descriptors of one terminal, which stay the caller's and have to outlive this.  Null if it cannot be used
  // for editing, for example because TERM is "dumb": read plain lines then.
  static std::unique_ptr<LineEditor> Open(int in, int out, const std::string& prompt);
  ~LineEditor();

  // Shows the prompt and blocks until a line is entered, or an interrupt.
  Line Read();
  // Appends a line to those that arrow-up recalls; at most `kMostRecalled` are kept.
  static constexpr int kMostRecalled = 1000;
  void Remember(const std::string& line);
  // Ends the Read under way, or the next one, and drops what was typed.  Never blocks.
  void Interrupt();

 private:
  class Impl;
  explicit LineEditor(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::cli
