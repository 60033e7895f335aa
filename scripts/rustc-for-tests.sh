#!/usr/bin/env bash
# Compiles one crate of the workspace for `make test`; cargo passes the compiler and its arguments. CLIPPY_ARGS holds the lints.
#
# The library is compiled twice: for the programs, and with its own tests. Clippy reads only the latter, which contains all of the
# library's code. The library's own tests are short, so they stay unoptimised, which halves the time of their build.
set -euo pipefail

rustc=$1
shift
arguments=()
library= own_tests=
for argument in "$@"; do
    case $argument in
    src/lib.rs) library=yes ;;
    --test) own_tests=yes ;;
    esac
done
if [ -n "$library" ] && [ -z "$own_tests" ]; then
    exec "$rustc" "$@" "${CLIPPY_ARGS:--Dwarnings}"
fi
for argument in "$@"; do
    case $library$argument in
    yesopt-level=*) arguments+=(opt-level=0) ;;
    *) arguments+=("$argument") ;;
    esac
done
exec clippy-driver "$rustc" "${arguments[@]}"
