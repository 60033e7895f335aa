#!/usr/bin/env bash
# Sets up what the tests need, checks formatting and lints, and runs every test on both databases. Arguments go to the test
# runner: `scripts/test.sh lease` runs the tests whose names contain "lease".
set -euo pipefail
cd "$(dirname "$0")/.."

. scripts/test-environment.sh
preparing=
checking=
trap '[ -z "$preparing" ] || kill "$preparing" 2>/dev/null || true; [ -z "$checking" ] || kill "$checking" 2>/dev/null || true; scripts/test-postgres.sh stop "$work"; rm -rf "$work"' EXIT

CAPSTAN_TEST_POSTGRES_URL=$(scripts/test-postgres.sh start "$work")
export CAPSTAN_TEST_POSTGRES_URL
echo "test: Postgres is at ${CAPSTAN_TEST_POSTGRES_URL##*@}"

# Installs packages and servers from the network while the page is built and the compiler runs.
scripts/setup-tests.sh >"$work/prepare.log" 2>&1 &
preparing=$!

# The program embeds the page. The first build in a clone compiles the dependencies while the page is built, and the compiler of the
# build script waits for the page. Later builds begin after the page, because cargo looks for its changes only at the start.
export CAPSTAN_PAGE_MARKER=$work/page
(scripts/build-page.sh --required && touch "$CAPSTAN_PAGE_MARKER" && cd web && npm run --silent check) >"$work/page.log" 2>&1 &
checking=$!
export CAPSTAN_PAGE_PID=$checking
if compgen -G 'target/debug/build/capstan-*' >/dev/null; then
    until [ -e "$CAPSTAN_PAGE_MARKER" ] || ! kill -0 "$checking" 2>/dev/null; do sleep 0.2; done
fi

if ! cargo nextest --version >/dev/null 2>&1; then
    echo "test: cargo-nextest is missing; installing it, once"
    cargo install --locked cargo-nextest
fi

cargo fmt --all --check

# One build for everything. The wrapper runs Clippy and builds the tests, so the dependencies are built once. The fuzzers and
# benches are built here too, or else they would break unnoticed.
export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/rustc-for-tests.sh CLIPPY_ARGS=-Dwarnings
# One job more than processors, because each compiler works on one processor for a part of its time.
if ! cargo build --locked --workspace --bins --tests --benches --jobs $(($(getconf _NPROCESSORS_ONLN) + 1)); then
    tail -n 40 "$work/page.log" >&2
    exit 1
fi

tests=$(cargo nextest list --locked --workspace --message-format oneline)
if ! grep -q postgres <<<"$tests"; then
    echo "test: no test exercises Postgres; a run without it does not count" >&2
    exit 1
fi

checked=0
wait "$checking" || checked=$?
checking=
tail -n 40 "$work/page.log"
[ "$checked" -eq 0 ] || { echo "test: the types, lints or tests of web/ failed" >&2; exit 1; }

prepared=0
wait "$preparing" || prepared=$?
preparing=
cat "$work/prepare.log"
[ "$prepared" -eq 0 ] || { echo "test: what the tests talk to could not be installed" >&2; exit 1; }

isolate_servers
cargo nextest run --locked --workspace --profile ci "$@"
