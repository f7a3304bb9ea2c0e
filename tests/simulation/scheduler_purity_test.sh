#!/bin/bash
# usage: scheduler_purity_test.sh LIBRARY NM
# The scheduler core has no clock, thread, random device, file or socket: the daemon, the embedded backend and the simulator link this same
# library. Refuses any undefined symbol of those kinds, and checks that it would see one.
set -euo pipefail
library=$1
nm=$2
calls='time|clock|sleep|usleep|nanosleep|rand|random|srand|getrandom|open|openat|fopen|read|write|pread|pwrite|socket|connect|send|recv'
calls+='|poll|select|epoll_[a-z]+|fork|execv[pe]*|mmap|getenv|puts|printf'
forbidden="clock_gettime|gettimeofday|(^|[^a-z_])($calls)\$"
forbidden+="|std::chrono::_V2|std::random_device|std::thread|std::mutex|std::condition_variable"
forbidden+='|pthread_(create|mutex|cond)|std::basic_[io]?fstream|std::filesystem|std::(cout|cerr|cin)|google::'
refuse() { "$nm" -uC "$1" | sed -n 's/^ *U //p' | grep -E "$forbidden" || true; }

count=$("$nm" -C "$library" 2>/dev/null | grep -c 'ropewalk::scheduler::Scheduler::Step' || true)
[ "$count" -ge 1 ] || { echo "$library holds no Scheduler::Step: is it the right library?"; exit 1; }
found=$(refuse "$library")
if [ -n "$found" ]; then
  echo "the scheduler core is not pure; it uses:"
  echo "$found"
  exit 1
fi

# Would it be seen?
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/bad.cc" <<'END'
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
long Bad() {
  std::random_device device;
  std::thread([] {}).join();
  std::fopen("/tmp/x", "r");
  return std::chrono::steady_clock::now().time_since_epoch().count() + device();
}
END
"${CXX:-c++}" -std=c++20 -c "$work/bad.cc" -o "$work/bad.o"
seen=$(refuse "$work/bad.o")
for kind in chrono random_device thread fopen; do
  grep -q "$kind" <<< "$seen" || { echo "the check itself is blind for $kind"; exit 1; }
done
echo "pure: $library"
