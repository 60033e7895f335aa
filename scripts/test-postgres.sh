#!/usr/bin/env bash
# Finds or starts a Postgres for the tests.
#
#   start FOLDER   prints the URL of a database whose user may create databases
#   own FOLDER     the same, but always a throw-away server, for a test that stops it
#   stop FOLDER    stops what `start` or `own` started; does nothing if they started nothing
#   down FOLDER    shuts a server of `own` down, as an operator does; its clients are cut off
#   up FOLDER      starts it again, on the same port
#   freeze FOLDER  stops all its processes where they are: it accepts connections and never answers
#   thaw FOLDER    lets them go on
#   run COMMAND... runs a command with CAPSTAN_TEST_POSTGRES_URL of `start`, and stops the server after it
#
# `start` tries in this order: CAPSTAN_TEST_POSTGRES_URL, a DATABASE_URL that names Postgres, a throw-away server from installed
# binaries, a server on localhost:5432 that lets the user postgres in without a password, and a throw-away server after installing the
# package. A throw-away server comes first because it does not wait for the disk: the tests create hundreds of databases.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mode=${1:?start, own, stop, down, up, freeze, thaw or run}
folder=${2:?folder or command}
cluster=$folder/postgres

# Postgres refuses to run as root, so the user `postgres` runs it, or else the user `nobody`.
as_owner() {
    if [ "$(id -u)" -eq 0 ]; then
        runuser -u "$(owner)" -- "$@"
    else
        "$@"
    fi
}
owner() { if id postgres >/dev/null 2>&1; then echo postgres; else echo nobody; fi; }

# The folder with the programs of the newest installed server.
binaries() {
    local found
    found=$(find /usr/lib/postgresql /usr/local/pgsql /opt/homebrew/opt -maxdepth 3 -name initdb -path '*bin*' 2>/dev/null | sort -V | tail -1)
    [ -n "$found" ] || found=$(command -v initdb || true)
    [ -z "$found" ] || dirname "$found"
}

# Sends the first message of the wire protocol as user postgres. A server that asks for no password answers `R`, length 8, code 0.
# So no client program is needed.
answers_on_localhost() {
    local answer
    answer=$(timeout 3 bash -c '
        exec 3<>/dev/tcp/127.0.0.1/5432
        printf "\0\0\0\051\0\3\0\0user\0postgres\0database\0postgres\0\0" >&3
        head -c 9 <&3 | od -An -tx1 | tr -d " \n"' 2>/dev/null) || return 1
    [ "$answer" = 520000000800000000 ]
}

start_throw_away() {
    local bin=$1 port try
    mkdir -p "$cluster"
    chmod 711 "$folder"
    [ "$(id -u)" -ne 0 ] || chown "$(owner)" "$cluster"
    (cd "$cluster" && as_owner "$bin/initdb" -D "$cluster/data" -U postgres -A trust -E UTF8 --no-locale >"$folder/initdb.log" 2>&1) ||
        { cat "$folder/initdb.log" >&2; return 1; }
    echo "$bin" >"$folder/postgres-bin"
    for try in 1 2 3 4 5; do
        # A port below those that the system gives to clients, so that a server that was shut down finds its port free.
        port=$((20000 + (RANDOM % 12000)))
        # fsync is off because the cluster is thrown away; the tests kill Capstan, not the machine. A bench wants it on.
        if (cd "$cluster" && as_owner "$bin/pg_ctl" -D "$cluster/data" -l "$cluster/log" -w -t 30 -o \
            "-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$cluster -c max_connections=500 -c fsync=${POSTGRES_FSYNC:-off} -c full_page_writes=${POSTGRES_FSYNC:-off}" \
            start </dev/null >/dev/null 2>&1); then
            echo "postgres://postgres@127.0.0.1:$port/postgres"
            return 0
        fi
    done
    cat "$cluster/log" >&2
    return 1
}

throw_away() {
    local bin
    bin=$(binaries)
    if [ -z "$bin" ]; then
        echo "test: no Postgres found; installing the package, once" >&2
        "$here/apt-install.sh" postgresql
        bin=$(binaries)
    fi
    start_throw_away "$bin"
}

control() {
    (cd "$cluster" && as_owner "$(cat "$folder/postgres-bin")/pg_ctl" -D "$cluster/data" "$@" </dev/null >/dev/null 2>&1)
}

# Signals the first process before its children, because it starts new ones.
signal_all() {
    local first
    first=$(head -1 "$cluster/data/postmaster.pid")
    kill "-$1" "$first"
    pkill "-$1" -P "$first"
}

case $mode in
start)
    if [ -n "${CAPSTAN_TEST_POSTGRES_URL:-}" ]; then
        echo "$CAPSTAN_TEST_POSTGRES_URL"
        exit
    fi
    case ${DATABASE_URL:-} in postgres://* | postgresql://*)
        echo "$DATABASE_URL"
        exit
        ;;
    esac
    if [ -z "$(binaries)" ] && answers_on_localhost; then
        echo "postgres://postgres@127.0.0.1:5432/postgres"
        exit
    fi
    throw_away
    ;;
own)
    throw_away
    ;;
stop)
    if [ -f "$folder/postgres-bin" ]; then
        signal_all CONT 2>/dev/null || true
        control -m immediate stop || true
        rm -rf "$cluster"
    fi
    ;;
down)
    control -m fast -w stop
    ;;
up)
    # Uses `restart` because it keeps the port and the other options, which `start` does not.
    control -w -t 30 restart
    ;;
freeze)
    signal_all STOP
    ;;
thaw)
    signal_all CONT
    ;;
run)
    shift
    work=$(mktemp -d)
    trap '"$here/test-postgres.sh" stop "$work"; rm -rf "$work"' EXIT
    CAPSTAN_TEST_POSTGRES_URL=$("$here/test-postgres.sh" start "$work")
    export CAPSTAN_TEST_POSTGRES_URL
    # Settings of the caller's own server must not reach the servers that tests start.
    unset DATABASE_URL
    "$@"
    ;;
*)
    echo "start, own, stop, down, up, freeze, thaw or run?" >&2
    exit 1
    ;;
esac
