#include "clients/cli/terminal/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::cli {
namespace {

constexpr absl::string_view kPasteEnd = "\033[201~";
// Modes of the terminal: pasted text comes between two marks.
constexpr char kMarkPastes[] = "\033[?2004h", kPastesUnmarked[] = "\033[?2004l";

// What the handlers of signals set, for the object that reads.
int signal_wake_fd = -1;
volatile sig_atomic_t was_resized = 0, was_continued = 0;

void OnTerminalSignal(int signal) {
  const int saved = errno;
  (signal == SIGCONT ? was_continued : was_resized) = 1;
  eventfd_write(signal_wake_fd, 1);  // a plain write(), allowed in a handler
  errno = saved;
}

// Handles SIGWINCH and SIGCONT while it exists.
class TerminalSignals {
 public:
  explicit TerminalSignals(int wake_fd) {
    signal_wake_fd = wake_fd;
    struct sigaction action = {};
    action.sa_handler = &OnTerminalSignal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGWINCH, &action, &old_resized_);
    sigaction(SIGCONT, &action, &old_continued_);
  }
  ~TerminalSignals() {
    sigaction(SIGWINCH, &old_resized_, nullptr);
    sigaction(SIGCONT, &old_continued_, nullptr);
  }

 private:
  struct sigaction old_resized_, old_continued_;
};

// Makes libedit see and write UTF-8 on this thread.
class Utf8Scope {
 public:
  explicit Utf8Scope(locale_t utf8) : old_(uselocale(utf8)) {}
  ~Utf8Scope() { uselocale(old_); }

 private:
  const locale_t old_;
};

std::string ToUtf8(const wchar_t* text, size_t size) {
  std::string out;
  for (size_t i = 0; i < size; ++i) AppendUtf8(static_cast<uint32_t>(text[i]), &out);
  return out;
}

std::wstring ToWide(absl::string_view utf8) {
  std::wstring out;
  for (size_t at = 0; at < utf8.size();) out += static_cast<wchar_t>(DecodeUtf8(utf8, &at));
  return out;
}

// Pasted bytes as text: valid UTF-8, line breaks as \n and none at the end, no other control characters but tabs.
std::string CleanPaste(absl::string_view bytes) {
  std::string text, out;
  LossyUtf8 utf8;
  utf8.Append(bytes, &text);
  utf8.Flush(&text);
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_break = text[i] == '\r' || text[i] == '\n';
    if (text[i] == '\n' && i > 0 && text[i - 1] == '\r') continue;
    if (is_break || text[i] == '\t' || !absl::ascii_iscntrl(static_cast<unsigned char>(text[i])))
      out += is_break ? '\n' : text[i];
  }
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

FILE* StreamOf(int fd, const char* mode) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  return copy < 0 ? nullptr : fdopen(copy, mode);
}

}  // namespace

class LineEditor::Impl {
 public:
  explicit Impl(std::string prompt) : prompt_(std::move(prompt)) {}
  ~Impl() {
    const Utf8Scope scope(utf8_);
    if (history_ != nullptr) history_end(history_);
    if (edit_ != nullptr) el_end(edit_);
    if (in_ != nullptr) fclose(in_);
    if (out_ != nullptr) fclose(out_);
    if (wake_fd_ >= 0) close(wake_fd_);
    if (utf8_ != locale_t()) freelocale(utf8_);
  }

  bool Open(int in, int out) {
    const char* const kind = std::getenv("TERM");
    if (kind == nullptr || *kind == '\0' || absl::string_view(kind) == "dumb") return false;
    if (isatty(in) == 0 || isatty(out) == 0) return false;
    utf8_ = newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t());
    wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    in_ = StreamOf(in, "r");
    out_ = StreamOf(out, "w");
    if (utf8_ == locale_t() || wake_fd_ < 0 || in_ == nullptr || out_ == nullptr) return false;
    const Utf8Scope scope(utf8_);
    edit_ = el_init("switchyard", in_, out_, out_);
    history_ = history_init();
    if (edit_ == nullptr || history_ == nullptr) return false;
    HistEvent event;
    history(history_, &event, H_SETSIZE, kMostRecalled);
    history(history_, &event, H_SETUNIQUE, 1);
    Bind();
    return true;
  }

  Line Read() {
    const Utf8Scope scope(utf8_);
    const TerminalSignals signals(wake_fd_);
    // First, else keys that come now would be what they mean to a terminal without editing.
    el_set(edit_, EL_PREP_TERM, 1);
    Write(kMarkPastes);
    int size = 0;
    const wchar_t* const text = el_wgets(edit_, &size);
    Write(kPastesUnmarked);
    if (interrupted_.exchange(false)) return {.end = Line::End::kInterrupted};
    if (text == nullptr || size <= 0) return {.end = Line::End::kClosed};
    const size_t length = static_cast<size_t>(size);
    return {.end = Line::End::kEntered, .text = ToUtf8(text, text[length - 1] == L'\n' ? length - 1 : length)};
  }

  void Remember(const std::string& line) {
    const Utf8Scope scope(utf8_);
    HistEvent event;
    history(history_, &event, H_ENTER, line.c_str());
  }

  void Interrupt() {
    interrupted_.store(true);
    eventfd_write(wake_fd_, 1);
  }

 private:
  void Bind() {
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_GETCFN, &GetCharacter);
    el_set(edit_, EL_PROMPT, &PromptOf);
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_EDITOR, "emacs");
    for (const auto& [keys, command] : {std::pair(L"^R", L"em-inc-search-prev"),
                                        {L"^W", L"ed-delete-prev-word"},
                                        {L"\\e[3~", L"ed-delete-next-char"},
                                        {L"\\e[1;5C", L"em-next-word"},
                                        {L"\\e[1;5D", L"ed-prev-word"},
                                        {L"\\e[1~", L"ed-move-to-beg"},
                                        {L"\\e[4~", L"ed-move-to-end"}}) {
      el_wset(edit_, EL_BIND, keys, command, nullptr);
    }
    el_source(edit_, nullptr);  // ~/.editrc may bind these otherwise
    el_wset(edit_, EL_ADDFN, L"switchyard-paste", L"insert pasted text", &Paste);
    el_wset(edit_, EL_ADDFN, L"switchyard-break", L"insert a line break", &Break);
    el_wset(edit_, EL_BIND, L"\\e[200~", L"switchyard-paste", nullptr);
    el_wset(edit_, EL_BIND, L"\\e\\r", L"switchyard-break", nullptr);
    el_wset(edit_, EL_BIND, L"\\e\\n", L"switchyard-break", nullptr);
  }

  static Impl* Of(EditLine* edit) {
    void* own = nullptr;
    el_get(edit, EL_CLIENTDATA, &own);
    return static_cast<Impl*>(own);
  }
  static char* PromptOf(EditLine* edit) { return Of(edit)->prompt_.data(); }
  static int GetCharacter(EditLine* edit, wchar_t* to) { return Of(edit)->Get(to) ? 1 : 0; }

  static unsigned char Break(EditLine* edit, int) { return el_winsertstr(edit, L"\n") == 0 ? CC_REFRESH : CC_ERROR; }

  // Reads up to the mark behind the pasted text.
  static unsigned char Paste(EditLine* edit, int) {
    std::string bytes;
    size_t dropped = 0;
    for (char byte; !absl::EndsWith(bytes, kPasteEnd); bytes += byte) {
      if (!Of(edit)->GetByte(&byte)) return CC_EOF;
      if (bytes.size() < kMostPastedBytes + kPasteEnd.size()) continue;
      bytes.erase(kMostPastedBytes, 1);  // the mark at the end is still to be found
      ++dropped;
    }
    bytes.resize(bytes.size() - kPasteEnd.size());
    const std::wstring text = ToWide(CleanPaste(bytes));
    if (dropped > 0) el_beep(edit);
    if (text.empty()) return CC_REFRESH;
    return el_winsertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  // False: the terminal is gone, or there was an interrupt.
  bool Get(wchar_t* to) {
    while (next_ >= ready_.size()) {
      ready_.clear();
      next_ = 0;
      char byte = 0;
      if (!GetByte(&byte)) return false;
      decoder_.Append(absl::string_view(&byte, 1), &ready_);
    }
    *to = static_cast<wchar_t>(DecodeUtf8(ready_, &next_));
    return true;
  }

  bool GetByte(char* to) {
    for (;;) {
      pollfd fds[2] = {{wake_fd_, POLLIN, 0}, {fileno(in_), POLLIN, 0}};
      if (poll(fds, 2, -1) < 0) {
        if (errno == EINTR) continue;
        return false;
      }
      if (fds[0].revents != 0) {
        eventfd_t count = 0;
        eventfd_read(wake_fd_, &count);
        if (interrupted_.load()) return false;
        AfterSignals();
        continue;
      }
      const ssize_t got = read(fileno(in_), to, 1);
      if (got == 1) return true;
      if (got == 0 || (errno != EINTR && errno != EAGAIN)) return false;
    }
  }

  void AfterSignals() {
    if (std::exchange(was_resized, 0) != 0) el_resize(edit_);
    if (std::exchange(was_continued, 0) == 0) return;
    // The shell has set the terminal's modes to its own.
    el_set(edit_, EL_PREP_TERM, 0);
    el_set(edit_, EL_PREP_TERM, 1);
    Write(kMarkPastes);
    el_set(edit_, EL_REFRESH);
  }

  void Write(const char* text) {
    std::fputs(text, out_);
    std::fflush(out_);
  }

  std::string prompt_;
  locale_t utf8_ = locale_t();
  int wake_fd_ = -1;
  FILE *in_ = nullptr, *out_ = nullptr;
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  LossyUtf8 decoder_;
  std::string ready_;  // decoded, from next_ on not yet used
  size_t next_ = 0;
  std::atomic<bool> interrupted_{false};
};

LineEditor::LineEditor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LineEditor::~LineEditor() = default;

std::unique_ptr<LineEditor> LineEditor::Open(int in, int out, const std::string& prompt) {
  auto impl = std::make_unique<Impl>(prompt);
  if (!impl->Open(in, out)) return nullptr;
  return std::unique_ptr<LineEditor>(new LineEditor(std::move(impl)));
}

LineEditor::Line LineEditor::Read() { return impl_->Read(); }
void LineEditor::Remember(const std::string& line) { impl_->Remember(line); }
void LineEditor::Interrupt() { impl_->Interrupt(); }

}  // namespace switchyard::cli
