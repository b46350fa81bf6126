// Windows of whole documents, of files of packed tokens: WindowPacking::kBestFit.
//
// A document of n tokens has n - 1 rows: each token but the last, with the next one as its target.  Documents that fit
// into a window are never cut.  A longer one fills windows from its own begin on; what remains of it is a piece of its
// own, packed like a document.  No token is left out, except documents of one token, which have no target.
//
// Of files of pairs (token_format.h) a pair is what is packed: its two documents are in one window, one behind the
// other.  A pair that does not fit, or with a document of one token, is left out.  Files are all of pairs, or none is.
//
// Documents of a file are packed kDocumentsOfGroup at a time, in the file's order (best_fit.h): a window is a function
// of files, length and seed alone, and is found without all documents in memory.  Memory: 8 bytes a group, the groups
// that were used last, and of llm.c's files 8 bytes a document.  Thread-compatible.
// Errors: TokenFile's; Cancelled when it is no longer wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "workers/train/data/token_file.h"

namespace switchyard::train {

// Another number changes the windows of jobs that go on.
inline constexpr int64_t kDocumentsOfGroup = 4096;

// A document, or a piece of one, within a window: tokens [first, first + rows], the last of which is a target only.
struct DocumentPart {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t pair = -1;  // number among the file's pairs
  bool operator==(const DocumentPart&) const = default;
};

class DocumentWindows {
 public:
  // files: borrowed.  Reads where documents begin; progress as in TokenFile::Verify, over all files together.
  static absl::StatusOr<std::unique_ptr<DocumentWindows>> Create(
      absl::Span<const TokenFile> files, int64_t length, uint64_t seed,
      absl::FunctionRef<bool(int64_t bytes_done, int64_t bytes_total)> progress);

  // The files' windows follow each other: file f has [first_windows()[f], first_windows()[f + 1]).
  absl::Span<const int64_t> first_windows() const { return first_windows_; }
  // Of all files.
  int64_t num_documents() const { return num_documents_; }
  int64_t num_cut_documents() const { return num_cut_documents_; }  // with more rows than a window
  int64_t num_rows() const { return num_rows_; }                    // in windows
  bool of_pairs() const { return of_pairs_; }
  int64_t num_left_out_pairs() const { return num_left_out_pairs_; }

  // The parts of a window of this file, in their order.  REQUIRES: the window is the file's.
  absl::StatusOr<std::vector<DocumentPart>> PartsOf(size_t file, int64_t window);

 private:
  struct Run {  // whole windows of a long document
    int64_t first_window = 0, first = 0;
  };
  struct Group {
    int64_t index = -1;      // over all files
    uint64_t last_used = 0;  // by uses_
    std::vector<Run> runs;
    int64_t num_whole = 0;  // windows of the runs, which come before the others
    std::vector<std::vector<DocumentPart>> packed;
    int64_t num_windows() const { return num_whole + static_cast<int64_t>(packed.size()); }
  };

  DocumentWindows(absl::Span<const TokenFile> files, int64_t length, uint64_t seed)
      : files_(files), length_(length), seed_(seed) {}
  // What is packed: documents, or pairs of them.
  struct Pieces {
    std::vector<DocumentPart> parts;  // of each piece one, or two
    std::vector<int32_t> rows;        // [pieces]
  };
  absl::Status CheckKinds();
  absl::Status CountWindows(absl::FunctionRef<bool(int64_t, int64_t)> progress);
  int64_t NumDocuments(size_t file) const;
  // The begins of documents [first, first + count) of the file, and the end of the last.
  absl::StatusOr<std::vector<int64_t>> BordersOf(size_t file, int64_t first, int64_t count) const;
  Pieces PiecesOf(absl::Span<const int64_t> borders, Group* packed) const;
  Pieces PairsOf(int64_t group, absl::Span<const int64_t> borders) const;
  void Count(absl::Span<const int64_t> borders);
  absl::StatusOr<Group> Pack(size_t file, int64_t group, absl::Span<const int64_t> borders) const;
  absl::StatusOr<Group*> GroupOf(size_t file, int64_t group);

  const absl::Span<const TokenFile> files_;
  const int64_t length_;
  const uint64_t seed_;
  std::vector<std::vector<int64_t>> found_begins_;  // [files] of llm.c's files
  std::vector<int64_t> first_windows_ = {0};        // [files + 1]
  std::vector<int64_t> first_groups_ = {0};         // [files + 1]
  std::vector<int64_t> group_windows_;              // [groups] the first window of each
  int64_t num_documents_ = 0, num_cut_documents_ = 0, num_rows_ = 0, num_left_out_pairs_ = 0;
  bool of_pairs_ = false;
  std::vector<Group> used_;  // at most kUsedGroups
  uint64_t uses_ = 0;
};

}  // namespace switchyard::train
