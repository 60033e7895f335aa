#!/usr/bin/env bash
# Runs every fuzzer of fuzz/ for TIME seconds each, one after the other, or TARGET alone. A line per target says how far it came.
set -euo pipefail
cd "$(dirname "$0")/.."

TIME="${TIME:-60}"
if ! cargo fuzz --version >/dev/null 2>&1; then
  echo 'cargo-fuzz is not installed: cargo install --locked cargo-fuzz' >&2
  exit 1
fi
# The stable compiler contains the features that fuzzers need, behind this variable. The code has no `unsafe`, so sanitizers would
# find no more than panics do.
export RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_DEBUG=line-tables-only
cargo fuzz build --sanitizer none

targets="${TARGET:-$(cargo fuzz list)}"
failed=0
for target in $targets; do
  corpus="fuzz/corpus/$target"
  log="target/fuzz-$target.log"
  mkdir -p "$corpus" target
  # 10 s for one input of up to 64 KiB is a hang; 1 GiB of memory is a leak.
  if cargo fuzz run --sanitizer none "$target" "$corpus" "fuzz/seeds/$target" -- \
    -max_total_time="$TIME" -timeout=10 -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1 >"$log" 2>&1; then
    verdict=holds
  else
    verdict=FAILS
    failed=1
  fi
  runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  memory="$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")"
  edges="$(grep -oE 'cov: [0-9]+' "$log" | tail -1 | cut -d' ' -f2)"
  printf '%-17s %-6s %4s s %10s runs %6s edges %5s MiB\n' "$target" "$verdict" "$TIME" "${runs:-?}" "${edges:-?}" "${memory:-?}"
  if [ "$verdict" = FAILS ]; then
    grep -E -A3 'panicked at|ERROR: libFuzzer|Test unit written' "$log" | head -20
  fi
done
exit "$failed"
