#!/usr/bin/env bash
# Sets up what the tests need, checks formatting and lints, and runs every test on both databases. Arguments go to the test
# runner: `scripts/test.sh lease` runs the tests whose names contain "lease".
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
preparing=
trap '[ -z "$preparing" ] || kill "$preparing" 2>/dev/null || true; scripts/test-postgres.sh stop "$work"; rm -rf "$work"' EXIT

CAPSTAN_TEST_POSTGRES_URL=$(scripts/test-postgres.sh start "$work")
export CAPSTAN_TEST_POSTGRES_URL
echo "test: Postgres is at ${CAPSTAN_TEST_POSTGRES_URL##*@}"
# Settings of the caller's own server must not reach the servers that tests start.
unset DATABASE_URL

# Comes from the network while the compiler is at work: the real MCP servers and model servers that some tests talk to, and what runs
# containers and goes into one. Where podman cannot run, the test of containers says that it tested nothing.
prepare() {
    # A server of tools in Python is built here, and some tests look at processes and at a repository.
    local missing=()
    command -v c++ >/dev/null || missing+=(g++)
    command -v git >/dev/null || missing+=(git)
    command -v pkill >/dev/null || missing+=(procps)
    # The page for people is looked at by a browser.
    command -v chromium >/dev/null || missing+=(chromium)
    command -v chromedriver >/dev/null || missing+=(chromium-driver)
    [ ${#missing[@]} -eq 0 ] || scripts/apt-install.sh "${missing[@]}"
    if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        scripts/apt-install.sh python3 python3-venv
    fi
    scripts/test-deps.sh
    if ! command -v podman >/dev/null || ! command -v runc >/dev/null || [ ! -x /bin/busybox ]; then
        scripts/apt-install.sh podman runc busybox-static || echo "test: podman cannot be installed; servers in containers are not tested"
    fi
}
prepare >"$work/prepare.log" 2>&1 &
preparing=$!

if ! cargo nextest --version >/dev/null 2>&1; then
    echo "test: cargo-nextest is missing; installing it, once"
    cargo install --locked cargo-nextest || echo "test: it cannot be installed; cargo test is used instead"
fi

cargo fmt --check
cargo clippy --locked --all-targets --features failpoints -- -D warnings

if cargo nextest --version >/dev/null 2>&1; then
    # `list` also builds; what it prints shows that the tests of Postgres are among those that run.
    tests=$(cargo nextest list --locked --features failpoints --message-format oneline)
    runner=(cargo nextest run --locked --features failpoints "$@")
else
    tests=$(cargo test --locked --features failpoints -- --list)
    runner=(cargo test --locked --features failpoints -- "$@")
fi
if ! grep -q postgres <<<"$tests"; then
    echo "test: no test exercises Postgres; a run without it does not count" >&2
    exit 1
fi

prepared=0
wait "$preparing" || prepared=$?
preparing=
cat "$work/prepare.log"
[ "$prepared" -eq 0 ] || { echo "test: what the tests talk to could not be installed" >&2; exit 1; }

# A package of its own, which would otherwise break unseen. Its libraries are those of the server, but for what fuzzers need in C++.
cargo check --locked --manifest-path fuzz/Cargo.toml --all-targets --target-dir target

"${runner[@]}"
