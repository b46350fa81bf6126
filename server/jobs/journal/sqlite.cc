#include "server/jobs/journal/sqlite.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/log.h"

namespace switchyard::server {

absl::StatusOr<Sqlite> Sqlite::Open(const std::string& path) {
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  Sqlite db(path, handle);  // also closes one that did not open
  if (code != SQLITE_OK) return db.Error(code, "open");
  sqlite3_extended_result_codes(handle, 1);
  return db;
}

Sqlite::~Sqlite() {
  if (db_ != nullptr) sqlite3_close(db_);
}

absl::Status Sqlite::Run(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, sql);
}

std::string Sqlite::name() const { return path_.substr(path_.rfind('/') + 1); }

absl::Status Sqlite::Error(int code, absl::string_view what) const {
  const char* const says = db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(code);
  std::string detail = absl::StrCat(path_, ": ", says, " (", what, ")");
  if (detail != last_logged_) LogWarn(detail);
  last_logged_ = std::move(detail);
  const std::string text = absl::StrCat(name(), ": ", says);
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(absl::StrCat(name(), ": another process has it open"));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(absl::StrCat(text, "; move it away to begin anew, or put a copy in its place"));
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

SqliteStatement::SqliteStatement(const Sqlite& db, const char* sql) : db_(db), sql_(sql) {
  error_ = sqlite3_prepare_v2(db.db(), sql, -1, &statement_, nullptr);
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

SqliteStatement& SqliteStatement::Bind(int64_t value) {
  if (error_ == SQLITE_OK) error_ = sqlite3_bind_int64(statement_, next_++, value);
  return *this;
}

SqliteStatement& SqliteStatement::Bind(absl::string_view text) {
  if (error_ == SQLITE_OK) {
    error_ = sqlite3_bind_text64(statement_, next_++, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  }
  return *this;
}

SqliteStatement& SqliteStatement::BindBlob(absl::string_view bytes) {
  if (error_ == SQLITE_OK) {
    error_ = sqlite3_bind_blob64(statement_, next_++, bytes.data(), bytes.size(), SQLITE_TRANSIENT);
  }
  return *this;
}

SqliteStatement& SqliteStatement::BindNull() {
  if (error_ == SQLITE_OK) error_ = sqlite3_bind_null(statement_, next_++);
  return *this;
}

absl::StatusOr<bool> SqliteStatement::Step() {
  const int code = error_ == SQLITE_OK ? sqlite3_step(statement_) : error_;
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  error_ = code;
  return db_.Error(code, sql_);
}

std::string SqliteStatement::Bytes(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
}

}  // namespace switchyard::server
