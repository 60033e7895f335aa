#!/usr/bin/env bash
# Starts a run, loses the connection, and reads the rest: follow.sh [QUESTION]
set -euo pipefail
url=${CAPSTAN_URL:-http://127.0.0.1:8080}
question=${1:-What time is it, and what is 17*23?}
headers=(-H 'content-type: application/json')
[ -z "${CAPSTAN_KEY:-}" ] || headers+=(-H "authorization: Bearer $CAPSTAN_KEY")
stream=$(mktemp)
trap 'rm -f "$stream"' EXIT

# The run is stored before the server answers. With the same Idempotency-Key, a repeated request starts no second run.
body="{\"input\":\"${question//\"/\\\"}\"}"
location=$(curl -sSf "${headers[@]}" -H "idempotency-key: follow-$$-$RANDOM" -d "$body" -D - -o /dev/null "$url/api/v1/runs" |
  awk 'tolower($1) == "location:" { print $2 }' | tr -d '\r')
run=$url/api/v1/runs/${location##*/}
echo "run: ${location##*/}"

# Leaves the stream after a moment. The run goes on.
curl -sN "${headers[@]}" -H 'accept: text/event-stream' --max-time 0.2 "$run/events" >"$stream" || true
last=$(sed -n 's/^id: //p' "$stream" | tail -n 1)
echo "last event before the connection was lost: ${last:-none}"

# Returns with the number of the last event: every later event comes, once and in order. Shows their types.
curl -sN "${headers[@]}" -H 'accept: text/event-stream' ${last:+-H "last-event-id: $last"} "$run/events" |
  sed -n 's/^data: .*"type":"\([a-z_.]*\)","conversation_id".*/\1/p' | uniq -c

# The answer as a whole.
curl -sSf "${headers[@]}" -H 'prefer: wait=30' "$run"
echo
