#!/usr/bin/env bash
# Builds and runs the tests of one area only: the unit tests of src/AREA, and the binary of tests/it/AREA. Further arguments go to
# the test runner: `scripts/test-area.sh store lease` runs the tests of the store whose names contain "lease".
set -euo pipefail
cd "$(dirname "$0")/.."
area=${1:-}
[ -n "$area" ] && shift || { echo "name an area: AREA=provider, or another folder of src or tests/it" >&2; exit 1; }

. scripts/test-environment.sh
trap 'scripts/test-postgres.sh stop "$work"; rm -rf "$work"' EXIT
case $area in store | worker | e2e)
    CAPSTAN_TEST_POSTGRES_URL=$(scripts/test-postgres.sh start "$work")
    export CAPSTAN_TEST_POSTGRES_URL
    ;;
esac
isolate_servers
# The browser tests use the page that the program embeds.
[ "$area" != e2e ] || scripts/build-page.sh

module=$area
[ "$area" != mcp ] || module=tools::mcp
found=
if [ -d "src/${module/::/\/}" ]; then
    found=1
    # The same features as in the other packages, so that the dependencies are built once.
    cargo nextest run --locked --no-tests pass -p capstan --lib --features failpoints,fuzzing -E "test(/^$module::/)" "$@"
fi
if grep -q "^name = \"$area\"$" tests/it/Cargo.toml; then
    found=1
    cargo nextest run --locked --no-tests pass -p capstan-it --test "$area" "$@"
fi
[ -n "$found" ] || { echo "there is no area $area: it is a folder of src or tests/it" >&2; exit 1; }
