#!/usr/bin/env bash
# Builds the chat page into web/dist, which the next build of the program embeds. Does nothing if it is up to date. Without Node it says
# so, and the program is built without the page; with --required it fails.
set -euo pipefail
cd "$(dirname "$0")/../web"

if ! command -v npm >/dev/null || ! node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)'; then
    echo "page: Node 20.19 or newer is missing, so the program comes without the chat page; install it (https://nodejs.org) and run this again" >&2
    [ "${1:-}" != --required ]
    exit
fi
# The marker is newer than everything that the page is built from.
marker=node_modules/.page-built
if [ -f dist/index.html ] && [ -f "$marker" ] && [ -z "$(find src public index.html package.json package-lock.json vite.config.ts ../openapi/capstan.json -newer "$marker" -print -quit)" ]; then
    exit 0
fi
if [ ! -d node_modules ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    npm ci --no-fund --no-audit --loglevel=error
fi
npm run --silent build -- --logLevel warn
touch "$marker"
