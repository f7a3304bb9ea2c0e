#!/bin/bash
# The demo: word count and sort over text that every Debian has, its licence texts, repeated to 64 MiB; then two ranks learn Fashion-MNIST.
# May be run again and again.
# usage: demo.sh BUILD_FOLDER
set -euo pipefail
build=$(cd "$1" && pwd)
demo="$build/demo"
input="$demo/licences.txt"
bytes=$((64 << 20))
mkdir -p "$demo"

# lines FILE...: how many, counted as Ropewalk does: a last one without an end is one too
lines() { cat -- "$@" | LC_ALL=C grep -ac ''; }

if [[ ! -f "$input" || "$(stat -c %s "$input")" != "$bytes" ]]; then
  shopt -s nullglob
  sources=(/usr/share/common-licenses/* /usr/share/doc/*/copyright)
  if ((${#sources[@]} == 0)); then
    echo "error[DEMO01] no licence texts under /usr/share/common-licenses or /usr/share/doc/*/copyright" >&2
    echo "  why: this machine has none   fix: build/bin/ropewalk run wordcount YOUR_TEXT -o OUT" >&2
    exit 3
  fi
  cat -- "${sources[@]}" >"$demo/once.txt" 2>/dev/null || true  # a few may be dangling links
  (set +o pipefail; while cat "$demo/once.txt"; do :; done 2>/dev/null | head -c "$bytes") >"$input.new"
  mv "$input.new" "$input"
fi
echo "Input: the licence texts of this machine (/usr/share/common-licenses, /usr/share/doc/*/copyright), repeated to 64 MiB"
echo "       $input: $(lines "$input") lines"
echo "Engine: $build/bin/ropewalk run, embedded in one process on $(nproc) cores: no daemon, no port, no configuration"

# run NAME: one built-in job, timed
run() {
  local name=$1 start end
  echo
  echo "\$ ropewalk run $name $input -o $demo/$name --overwrite"
  start=$(date +%s%N)
  "$build/bin/ropewalk" run "$name" "$input" -o "$demo/$name" --overwrite
  end=$(date +%s%N)
  awk -v ns=$((end - start)) -v bytes="$bytes" -v name="$name" \
    'BEGIN { printf "%s: %.2f s from start to exit, %.0f MiB/s\n", name, ns / 1e9, bytes / 1048576 / (ns / 1e9) }'
}

run wordcount
cat "$demo"/wordcount/part-* | awk -F '\t' '{ words += $2 } END { printf "%d words, %d different ones\n", words, NR }'
echo "The most frequent ones:"
cat "$demo"/wordcount/part-* | sort -t "$(printf '\t')" -k2,2nr | awk -F '\t' 'NR <= 10 { printf "%10d  %s\n", $2, $1 }'
echo "Output: $demo/wordcount/part-*"

run sort
cat "$demo"/sort/part-* | LC_ALL=C sort -c
echo "$(lines "$demo"/sort/part-*) lines, in byte order (sort -c agrees). Output: $demo/sort/part-*"

echo
echo "\$ ropewalk train examples/train/fashion_mnist.toml --ranks 2 --set train.epochs=30"
echo "(about a minute where nothing else runs; what is left is said while it runs)"
"$build/bin/ropewalk" train "$(dirname "$0")/../examples/train/fashion_mnist.toml" --ranks 2 --set train.epochs=30 | tee "$demo/trained.txt"
right=$(sed -n 's/^held out: \([0-9.]*\)%.*/\1/p' "$demo/trained.txt")
if ! awk -v right="${right:-0}" 'BEGIN { exit !(right >= 85) }'; then
  echo "error[DEMO02] the model gets only ${right:-none}% of the held-out images right, and it should 85% or more" >&2
  echo "  why: training is broken on this machine   fix: make test names the part that is; please report it" >&2
  exit 1
fi
echo "Each rank took half of every batch; their gradients were summed while backward went on (docs/training.md)."
