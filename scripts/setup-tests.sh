#!/usr/bin/env bash
# Installs what the tests need besides Rust and Postgres: Debian packages, and the servers of scripts/test-deps.sh. Installs
# nothing if everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

# Some tests use pkill and git.
missing=()
command -v git >/dev/null || missing+=(git)
command -v pkill >/dev/null || missing+=(procps)
# A browser tests the chat page. Its driver must have the same version, so they are installed together.
command -v chromium-headless-shell >/dev/null && command -v chromedriver >/dev/null || missing+=(chromium-headless-shell chromium-driver)
# PgBouncer runs between the servers and Postgres in some tests. Its folder is in the PATH of root only.
PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || missing+=(pgbouncer)
[ ${#missing[@]} -eq 0 ] || scripts/apt-install.sh "${missing[@]}"
python3 -c 'import venv, ensurepip' 2>/dev/null || scripts/apt-install.sh python3 python3-venv
scripts/test-deps.sh
# Without podman, the test of containers reports that it was skipped.
if ! command -v podman >/dev/null || ! command -v runc >/dev/null || [ ! -x /bin/busybox ]; then
    scripts/apt-install.sh podman runc busybox-static || echo "test: podman cannot be installed; servers in containers are not tested"
fi
