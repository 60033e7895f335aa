# The environment of the tests, for `test.sh` and `test-area.sh`. Makes the folder `work`, which the caller removes at its end.

# Temporary files are in memory if it has room for them. The tests create and delete databases of hundreds of files each, and a disk's
# file system spends a tenth of their processor time on that.
memory=$(df --output=avail -BM /dev/shm 2>/dev/null | tail -1 | tr -dc 0-9 || true)
if [ "${memory:-0}" -ge 4096 ] && [ -w /dev/shm ]; then
    work=$(mktemp -d /dev/shm/capstan-XXXXXX)
else
    work=$(mktemp -d)
fi
export TMPDIR=$work

# Python keeps its compiled modules. Otherwise each test compiles the packages of its client again.
unset PYTHONDONTWRITEBYTECODE
# A version manager replaces python3 by a shell script, whose start takes longer than that of the interpreter.
if [ "$(head -c 2 "$(command -v python3)" 2>/dev/null)" = '#!' ]; then
    PATH=$(python3 -c 'import os, sys; print(os.path.dirname(sys.executable))'):$PATH
    export PATH
fi

# Nextest starts each test directly. Its own process between them serves the keys that suspend a run.
export NEXTEST_DOUBLE_SPAWN=0

# Prepares the environment of the servers that tests start. `test-postgres.sh start` must have read it before.
isolate_servers() {
    # Settings of the caller's own server must not reach them.
    unset DATABASE_URL
    # Each decodes all root certificates when it starts, and Node those of its own variable. There are over a thousand starts, and they
    # reach no other machine, so one certificate is enough.
    sed '/END CERTIFICATE/q' "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" >"$work/root.pem" 2>/dev/null || true
    [ ! -s "$work/root.pem" ] || export SSL_CERT_FILE=$work/root.pem
    unset SSL_CERT_DIR NODE_EXTRA_CA_CERTS
}
