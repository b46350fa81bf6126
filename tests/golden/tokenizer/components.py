"""Placeholder until written."""
def archive_files():
  return {"cases.jsonl": ""}
