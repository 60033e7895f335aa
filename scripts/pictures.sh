#!/usr/bin/env bash
# Takes the pictures of the documents from the running program, and writes them into docs/.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/build-page.sh --required
CAPSTAN_PICTURES=$PWD/docs cargo nextest run --locked -p capstan-it --test e2e -E 'test(/^pictures::/)' "$@"
