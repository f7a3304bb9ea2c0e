#!/bin/bash
# usage: find_package_test.sh BUILD_DIR   installs the package below a fresh prefix and builds and runs a user's project against it
set -euo pipefail
build=$(realpath "$1")
source=$(dirname "$(realpath "$0")")/user
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" --component development >"$work/install.log"
# A copy outside the tree, so that nothing but the package can be found.
cp -r "$source" "$work/user"
cmake -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/user/build" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
binary=$work/user/build/word_count

printf 'a b a\nc\n' >"$work/text"
(cd "$work" && "$binary" text counts)
sort "$work"/counts/part-* | diff - <(printf 'a\t2\nb\t1\nc\t1\n')

# The daemons' libraries stay with the daemons.
if nm -C "$binary" | grep -iE 'rocksdb|boost::beast' | head -3 | grep .; then
  echo "a user's binary holds symbols of RocksDB or Beast" >&2
  exit 1
fi
if readelf -d "$binary" | grep -i rocksdb; then
  echo "a user's binary needs RocksDB" >&2
  exit 1
fi
echo "ok: built, run, $(stat -c %s "$binary") bytes"
