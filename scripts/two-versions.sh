#!/usr/bin/env bash
# An upgrade and a rollback with two real versions: servers of an earlier revision are replaced one by one by those of this checkout,
# under a load of runs that use tools, and the other way round. tests/it/e2e/nodes/rolling.rs judges.
#
#   scripts/two-versions.sh REV    REV as git knows it, such as v1.2.0 or HEAD~30
#
# RUNS=60 runs are under way. The earlier revision is built in target/two-versions/, from what git holds of it and nothing else; its
# dependencies are built once for all revisions.
set -euo pipefail
cd "$(dirname "$0")/.."

revision=$(git rev-parse --verify --quiet "${1:?the earlier revision, as git knows it}^{commit}") ||
    { echo "two-versions: git knows no revision $1" >&2; exit 1; }
folder=$PWD/target/two-versions
source=$folder/$revision
older=$folder/capstan-$revision

if [ ! -x "$older" ]; then
    rm -rf "$source"
    mkdir -p "$source"
    git archive "$revision" | tar -x -C "$source"
    (cd "$source" && CARGO_TARGET_DIR=$folder/build cargo build --locked --features failpoints --bin capstan)
    # Copied to another name, because the next revision is built over it. Renamed last, so that the name never belongs to a partial
    # file.
    cp "$folder/build/debug/capstan" "$older.new"
    mv "$older.new" "$older"
    rm -rf "$source"
fi

export CAPSTAN_OLDER_BINARY=$older CAPSTAN_ROLLING_RUNS=${RUNS:-60}
scripts/test-postgres.sh run cargo test --locked -p capstan-it --test e2e -- nodes::rolling --nocapture --test-threads 1
