#!/bin/bash
# usage: find_package_test.sh BUILD_DIR   installs the package below a fresh prefix and builds and runs a user's project against it
set -euo pipefail
build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
# A project outside the tree, so that nothing but the package can be found: the program and the CMakeLists.txt of the README, as printed.
readme=$(dirname "$(realpath "$0")")/../../README.md
block() { awk -v open="^\`\`\`$1\$" '!seen && $0 ~ open { on = seen = 1; next } /^```$/ { on = 0 } on' "$readme"; }
mkdir "$work/user"
block cpp >"$work/user/word_count.cc"
block cmake >"$work/user/CMakeLists.txt"
grep -q CountByKey "$work/user/word_count.cc" && grep -q find_package "$work/user/CMakeLists.txt" ||
  { echo "the README has no program or no CMakeLists.txt" >&2; exit 1; }
configure() { cmake -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/prefix" "$@" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; exit 1; }; }
configure
grep -q 'no build type is set' "$work/configure.log" || { cat "$work/configure.log"; echo "no warning without a build type" >&2; exit 1; }
for with in -DCMAKE_CXX_FLAGS=-O1 -DCMAKE_BUILD_TYPE=Release; do
  rm -rf "$work/user/build"
  configure "$with"
  if grep -i warning "$work/configure.log"; then echo "a warning with $with" >&2; exit 1; fi
done
cmake --build "$work/user/build" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
binary=$work/user/build/word_count

printf 'a b a\nc\n' >"$work/text"
(cd "$work" && "$binary" text counts)
sort "$work"/counts/part-* | diff - <(printf 'a\t2\nb\t1\nc\t1\n')
# The installed command finds its jobs where it lies itself.
(cd "$work" && "$work/prefix/bin/ropewalk" run wordcount text -o counts1 >"$work/run.log" 2>&1) || { cat "$work/run.log"; exit 1; }
sort "$work"/counts1/part-* | diff - <(printf 'a\t2\nb\t1\nc\t1\n')

# The daemons' libraries stay with the daemons.
if nm -C "$binary" | grep -iE 'rocksdb|boost::beast' | head -3 | grep .; then
  echo "a user's binary holds symbols of RocksDB or Beast" >&2
  exit 1
fi
if readelf -d "$binary" | grep -i rocksdb; then
  echo "a user's binary needs RocksDB" >&2
  exit 1
fi
# Training is a component of its own: the example, as a user's program.
mkdir "$work/trainer"
cp "$(dirname "$readme")/examples/train_on_dataset.cc" "$work/trainer/"
cat >"$work/trainer/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(Trainer CXX)
find_package(Ropewalk 0.1 REQUIRED COMPONENTS train)
add_executable(trainer train_on_dataset.cc)
target_link_libraries(trainer PRIVATE Ropewalk::train)
END
cmake -S "$work/trainer" -B "$work/trainer/build" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/trainer/build" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
printf '1\trope\n0\ttar\n' >"$work/labels"
(cd "$work" && trainer/build/trainer labels 2 20 1 | head -1 | grep -q '2 of 2 right') || { echo "the trainer did not learn" >&2; exit 1; }

echo "ok: built, run, $(stat -c %s "$binary") bytes"
