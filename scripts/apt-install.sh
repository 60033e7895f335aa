#!/usr/bin/env bash
# Installs Debian packages, as root or through sudo without a password.
set -euo pipefail
command -v apt-get >/dev/null || { echo "missing: $*; install it and try again" >&2; exit 1; }
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || { echo "missing: $*; run as root: apt-get install $*" >&2; exit 1; }
    as_root=(sudo -n)
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q </dev/null >&2
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" </dev/null >&2
