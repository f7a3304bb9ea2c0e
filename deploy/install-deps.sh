#!/bin/bash
# Installs the Debian 12 packages that Ropewalk is built and tested with. Does nothing when all of them are there, so that it also
# works as another user than root; every run may be repeated.
#
# Never add libboost-dev or libboost-all-dev: they bring Boost 1.74, which conflicts with libboost1.81-dev.
set -euo pipefail

packages=(
  # tools
  g++ cmake ninja-build make mold ccache git ca-certificates protobuf-compiler python3 zstd gzip
  # what tests and benches look at: sockets, processes, awks to compare with
  iproute2 procps mawk gawk
  # libraries
  libboost1.81-dev libprotobuf-dev librocksdb-dev libgoogle-glog-dev libgtest-dev libgmock-dev libssl-dev
  zlib1g-dev libzstd-dev libxxhash-dev libfmt-dev libre2-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libdnnl-dev libpng-dev libjpeg62-turbo-dev
  # onnx.proto, from which messages are generated; nothing of it is linked
  libonnx-dev
  # data to train on, in tests, the demo and examples/train
  dataset-fashion-mnist bible-kjv
)

missing=()
for package in "${packages[@]}"; do
  if [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]]; then
    missing+=("$package")
  fi
done
if ((${#missing[@]} == 0)); then
  exit 0
fi
echo "install-deps: missing: ${missing[*]}"

if [[ "$(id -u)" != 0 ]]; then
  echo "error[DEP01] these packages are missing and only root can install them: ${missing[*]}" >&2
  echo "  why: not root   fix: run deploy/install-deps.sh once as root" >&2
  exit 2
fi
export DEBIAN_FRONTEND=noninteractive
# Another apt may hold the lock (unattended upgrades): wait for it instead of failing.
apt=(apt-get -o DPkg::Lock::Timeout=300 -y -qq)
"${apt[@]}" install --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
  "${apt[@]}" update
  "${apt[@]}" install --no-install-recommends "${missing[@]}"
}
