#!/usr/bin/env bash
# Measures how much load this machine bears, in a release build and one test at a time, and prints the figures. `make test` runs
# small forms of the same tests, which assert behaviour. Arguments select some: `scripts/capacity.sh storm`.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/test-deps.sh
# Each connection needs an open file on either side.
ulimit -n 20000

export CAPSTAN_CROWD_RUNS=${CAPSTAN_CROWD_RUNS:-1000} CAPSTAN_STORM_CLIENTS=${CAPSTAN_STORM_CLIENTS:-5000}
export CAPSTAN_STALLED=${CAPSTAN_STALLED:-1000} CAPSTAN_STALLED_EVENTS=${CAPSTAN_STALLED_EVENTS:-60000}
export CAPSTAN_STALLED_QUIET=${CAPSTAN_STALLED_QUIET:-60000} CAPSTAN_IDLE_SOCKETS=${CAPSTAN_IDLE_SOCKETS:-9900}
export CAPSTAN_TOOL_ROUNDS=${CAPSTAN_TOOL_ROUNDS:-20}
scripts/test-postgres.sh run cargo nextest run --release --locked -p capstan-it --test e2e --profile capacity --no-capture "$@"
