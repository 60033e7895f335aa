#!/usr/bin/env bash
# Compiles one crate of the workspace for `make test`; cargo passes the compiler and its arguments. CLIPPY_ARGS holds the lints.
#
# The library is compiled twice: for the programs, and with its own tests. Clippy reads only the latter, which contains all of the
# library's code. The tests start over a thousand servers, so the former leaves out the standard library's checks of unsafe code, which
# it has not. To optimise it would take longer than the tests would save.
set -euo pipefail

rustc=$1
shift
case " $* " in
*" src/lib.rs "*" --test "*) ;;
*" --crate-name build_script_build "*)
    # The build script reads the page, so its compiler waits until test.sh has built it.
    while [ -n "${CAPSTAN_PAGE_PID:-}" ] && [ ! -e "$CAPSTAN_PAGE_MARKER" ]; do
        kill -0 "$CAPSTAN_PAGE_PID" 2>/dev/null || { echo "test: the page could not be built" >&2; exit 1; }
        sleep 0.2
    done
    ;;
*" src/lib.rs "*) exec "$rustc" "$@" "${CLIPPY_ARGS:--Dwarnings}" -C debug-assertions=off -C overflow-checks=on ;;
esac
# The tests start over ten thousand programs. Without relocations, which a position-independent program has, each starts 4 ms sooner.
case " $* " in
*" --crate-type bin "* | *" --test "*) set -- "$@" -C relocation-model=static ;;
esac
exec clippy-driver "$rustc" "$@"
