// A thin layer over SQLite: handles that close themselves, errors as statuses.  Thread-compatible; blocks on the disk.
//
// Clients see the errors, so these have the file's name without its folder; the log has path and statement.
// FailedPrecondition: another process has the file open.  DataLoss: the file is damaged, or not a SQLite file.
// ResourceExhausted: the disk is full.  Unavailable: the file cannot be read or written.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace switchyard::server {

class Sqlite {
 public:
  static absl::StatusOr<Sqlite> Open(const std::string& path);
  Sqlite(Sqlite&& other) noexcept
      : path_(std::move(other.path_)),
        db_(std::exchange(other.db_, nullptr)),
        last_logged_(std::move(other.last_logged_)) {}
  Sqlite& operator=(Sqlite&&) = delete;
  ~Sqlite();

  // Runs statements that have no results.
  absl::Status Run(const char* sql);
  // Returns SQLite's last error as a status; `what`: the failed operation.
  absl::Status Error(int code, absl::string_view what) const;
  // The file's name without its folder, for messages.
  std::string name() const;
  sqlite3* db() const { return db_; }

 private:
  Sqlite(std::string path, sqlite3* db) : path_(std::move(path)), db_(db) {}

  std::string path_;
  sqlite3* db_ = nullptr;
  mutable std::string last_logged_;  // repeated errors are logged once
};

// One prepared statement.  The first error sticks; Step returns it.
class SqliteStatement {
 public:
  SqliteStatement(const Sqlite& db, const char* sql);
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;
  ~SqliteStatement();

  SqliteStatement& Bind(int64_t value);
  SqliteStatement& Bind(absl::string_view text);
  SqliteStatement& BindBlob(absl::string_view bytes);
  SqliteStatement& BindNull();
  // Returns true if there is a row.
  absl::StatusOr<bool> Step();
  absl::Status Run() { return Step().status(); }

  int64_t Int(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string Bytes(int column) const;  // of a text or a blob

 private:
  const Sqlite& db_;
  const char* const sql_;
  sqlite3_stmt* statement_ = nullptr;
  int error_ = SQLITE_OK;
  int next_ = 1;
};

}  // namespace switchyard::server
