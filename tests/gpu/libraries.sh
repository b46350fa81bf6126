# A pack (pack.sh) on a machine that has a GPU, and CUDA's libraries where the loader does not know them.  Sourced by run.sh and
# tests/bench/gpu/run.sh.

# unpack FILE SCRATCH: unpacks it into the folder SCRATCH and prints where it is then; a FILE that is a folder is taken as it is.
unpack() {
  local file=$1 scratch=$2
  [ ! -d "$file" ] || { (cd "$file" && pwd); return; }
  if command -v xz >/dev/null; then
    xz -dc "$file" | tar -C "$scratch" -x
  else
    python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)' "$file" | tar -C "$scratch" -x
  fi && echo "$scratch"
}

# Folders in which CUDA's libraries may be, best first.
library_folders() {
  tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
  printf '%s\n' /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib
  for python in python3 /usr/bin/python3; do
    "$python" -c 'import glob, site, sys
for folder in site.getsitepackages() + [site.getusersitepackages()] + sys.path:
    print("\n".join(sorted(glob.glob(folder + "/nvidia/*/lib")) or [""]))' 2>/dev/null
  done
}
# find_libraries FILE: makes LD_LIBRARY_PATH name a folder for each library of the list that the loader would not find.
find_libraries() {
  local name folder known
  known=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null)
  while read -r name; do
    grep -qF "$name " <<<"$known" && continue
    folder=$(library_folders | while read -r f; do [ -z "$f" ] || [ ! -e "$f/$name" ] || { echo "$f"; break; }; done)
    if [ -z "$folder" ]; then
      echo "$name is not on this machine (looked in ldconfig, LD_LIBRARY_PATH, /usr/local/cuda*, Python's packages)"
    elif [[ ":${LD_LIBRARY_PATH:-}:" != *":$folder:"* ]]; then
      export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
    fi
  done <"$1"
}
