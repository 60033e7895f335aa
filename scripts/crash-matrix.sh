#!/usr/bin/env bash
# The full form of the crash tests: every point, in every way, on both stores, with SEEDS seeds (default 20), and KILLS kills at
# random instants on each store (default 1000). JOBS cases are played at a time on each store (default 4). Takes hours.
# `ONLY='C09@2 Stop Postgres seed 3;' scripts/crash-matrix.sh` plays one case again: the name is that of the report.
set -euo pipefail
cd "$(dirname "$0")/.."

export CAPSTAN_MATRIX_SEEDS=${SEEDS:-20} CAPSTAN_MATRIX_KILLS=${KILLS:-1000} CAPSTAN_MATRIX_JOBS=${JOBS:-4}
tests=crash_matrix
if [ -n "${ONLY:-}" ]; then
    export CAPSTAN_MATRIX_ONLY=$ONLY
    tests=crash_matrix::every_point
fi
# Does not use nextest, which holds back the output of a test until the test has ended.
scripts/test-postgres.sh run cargo test --locked -p capstan-it --test e2e -- "$tests" --nocapture --test-threads 2
