#!/usr/bin/env bash
# Measures Capstan beside the floors of the bench project, interleaved in one run, and prints the tables of docs/benchmarks/README.md.
#
#   BENCH_DIR    the bench project (mock model, load generator, floors): default ../shared/bench
#   BENCH_PG     URL prefix of a Postgres whose databases may be created: default a throw-away one, with
#                fsync on
#   BENCH_PEERS  default agent,agent-pg,capstan,capstan-sqlite      BENCH_TESTS  default cold,ttft,mem,flood,paced
#   BENCH_ROUNDS default 3                                          BENCH_FLOOD  default 1,100,500
#   BENCH_SECS   seconds of each measured window, default 6
# BENCH_TESTS=paced measures a crowd: 1,000 conversations at a time, each with an answer of 200 tokens, 20 ms apart.
set -euo pipefail
cd "$(dirname "$0")/.."
bench=${BENCH_DIR:-../shared/bench}
[ -f "$bench/compare.py" ] || { echo "no bench project at $bench: set BENCH_DIR" >&2; exit 1; }
work=$PWD/target/bench
mkdir -p "$work"
# The project is copied, because its builds and results must not land beside its sources.
cp -r "$bench/." "$work/" && chmod -R u+w "$work"
(cd "$work" && cargo build --release)
cargo build --locked --profile dist
server=$PWD/target/dist/capstan
folder=$(mktemp -d)
trap 'scripts/test-postgres.sh stop "$folder"; rm -rf "$folder"' EXIT
pg=${BENCH_PG:-}
if [ -z "$pg" ]; then
    pg=$(env -u CAPSTAN_TEST_POSTGRES_URL -u DATABASE_URL POSTGRES_FSYNC=on scripts/test-postgres.sh start "$folder")
    pg=${pg%/postgres}
fi
admin=$pg/postgres
command -v psql >/dev/null || scripts/apt-install.sh postgresql-client
for peer in relay_pg agent_pg capstan; do
    psql -q "$admin" -c "DROP DATABASE IF EXISTS bench_$peer WITH (FORCE)" -c "CREATE DATABASE bench_$peer"
done
python3 - "$work/peers.json" "$server" <<'PY'
import json, sys
path, server = sys.argv[1:]
peers = json.load(open(path))
env = {
    "OPENAI_BASE_URL": "{mock}/v1", "OPENAI_API_KEY": "bench", "CAPSTAN_MODEL": "openai/mock", "CAPSTAN_LISTEN": "{listen}",
    "CAPSTAN_DATA_DIR": "{home}/data", "CAPSTAN_LOG__LEVEL": "warn", "TOKIO_WORKER_THREADS": "1",
}
args = [
    "--target", "generic", "-o", "open=/api/v1/conversations", "-o", "id=/id", "-o", "run=/api/v1/conversations/{id}/messages",
    "-o", 'body={"content":"{text}"}', "-H", "accept: text/event-stream", "-o", "type=/type", "-o", "token=part.delta",
    "-o", "text=/data/delta", "-o", "tool=tool.completed", "-o", "done=run.completed", "-o", "error=run.failed",
]
entry = {"paced": "1000", "kind": "ours", "cmd": [server, "serve"], "health": "/readyz", "args": args}
tool = {"tool": "current_time", "args": {}}
peers["capstan"] = dict(entry, about="Capstan on Postgres", db=True, env=dict(env, DATABASE_URL="{pg}"), tool=tool)
peers["capstan-sqlite"] = dict(entry, about="Capstan on SQLite", env=env, tool=tool)
json.dump(peers, open(path, "w"), indent=1)
PY
out=$work/out/run.jsonl
rm -f "$out"
# The first process of Postgres, so that the database's CPU time is counted if Postgres runs on this machine.
pgpid=$(pgrep -o -x postgres || echo 0)
python3 "$work/compare.py" --peers "${BENCH_PEERS:-agent,agent-pg,capstan,capstan-sqlite}" --tests "${BENCH_TESTS:-cold,ttft,mem,flood,paced}" \
    --rounds "${BENCH_ROUNDS:-3}" --flood "${BENCH_FLOOD:-1,100,500}" --secs "${BENCH_SECS:-6}" --pg "$pg" --pg-pid "$pgpid" \
    --bin "$work/target/release" --work "$work/out/work" --out "$out"
python3 "$work/report.py" "$out"
