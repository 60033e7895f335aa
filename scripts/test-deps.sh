#!/usr/bin/env bash
# Installs the servers that the integration tests talk to (MCP servers; litellm and llama.cpp as model providers), clients of the APIs,
# schemathesis and generators of API clients, at exactly the locked versions, into target/test-deps (or $CAPSTAN_TEST_DEPS). Does nothing when they are there
# already. Needs node >= 20, npm, and python3 >= 3.11 with venv.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
locks=$here/test-deps
deps=${CAPSTAN_TEST_DEPS:-$here/../target/test-deps}
mkdir -p "$deps"
deps=$(cd "$deps" && pwd)

wanted=$(cat "$locks/package.json" "$locks/package-lock.json" "$locks/requirements.txt" "$locks/openapi.txt" "$locks/models.txt" "$locks/uv.txt" | cksum)
if [ "$(cat "$deps/installed" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi
for tool in node npm python3; do
  command -v "$tool" >/dev/null || { echo "test-deps: $tool is needed for the MCP tests and was not found" >&2; exit 1; }
done

# One installation at a time. The stamp is written last, so that an incomplete installation is repeated.
exec 9>"$deps/lock"
if command -v flock >/dev/null; then flock 9; fi
# The earlier holder of the lock may have installed everything, and other processes may use it already.
if [ "$(cat "$deps/installed" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi
rm -f "$deps/installed"
cp "$locks/package.json" "$locks/package-lock.json" "$deps/"
npm ci --prefix "$deps" --no-audit --no-fund --loglevel=error
# uv installs in seconds. pip needs minutes of processor time, mostly to compile modules that no test imports.
[ -x "$deps/venv-uv/bin/python" ] || python3 -m venv "$deps/venv-uv"
"$deps/venv-uv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --requirement "$locks/uv.txt"
install_python() {
  local venv=$deps/$1
  [ -x "$venv/bin/python" ] || "$deps/venv-uv/bin/uv" venv --quiet --python "$(command -v python3)" "$venv"
  "$deps/venv-uv/bin/uv" pip install --quiet --python "$venv/bin/python" --requirement "$locks/$2.txt"
}
install_python venv requirements
install_python venv-openapi openapi
install_python venv-models models
# Compiles the modules now. The tests would otherwise compile them within their time limits, and some tests write no files.
"$deps/venv/bin/python" -c 'import langchain_openai, openai, pydantic_ai'
LITELLM_LOCAL_MODEL_COST_MAP=True "$deps/venv-models/bin/python" -c 'import litellm'
echo "$wanted" >"$deps/installed"
echo "test-deps: installed into $deps"
