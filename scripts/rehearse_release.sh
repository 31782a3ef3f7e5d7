#!/usr/bin/env bash
# The steps of a release, one by one, on this machine: `scripts/rehearse_release.sh [FOLDER]`. Nothing is published.
#
# It takes what git has of HEAD, so commit first. KERNELS=all compiles the machine code of all common kernels, as the workflow does,
# in 20 minutes of processor time; without it only those of the demo. TESTS=all runs `make test` in the sources of the sdist;
# without it the tests of rooms that need no other library.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$(mktemp -d)}
mkdir -p "$folder" && folder=$(realpath "$folder")
[ -z "$(ls -A "$folder")" ] || { echo "$folder is not empty"; exit 2; }
python=${PYTHON:-python3}
source=$folder/source dist=$folder/dist index=$folder/index
unset PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 XDG_CACHE_HOME=$folder/cache

step() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }
environment() { "$python" -m venv "$folder/$1" && "$folder/$1/bin/pip" install --quiet "${@:2}"; }

step "sources of $(git -C "$repository" rev-parse --short HEAD)"
mkdir -p "$source" "$dist" "$index"
git -C "$repository" archive HEAD | tar -x -C "$source"

step "machine code of the kernels (${KERNELS:-those of the demo})"
environment compile "$source"
all="import bundle_kernels, sys; from pathlib import Path; bundle_kernels.main(Path(sys.argv[1])"
some="$all, range(3, 4), ('ram', 'ram+')"
[ "${KERNELS:-}" = all ] || all=$some
PYTHONPATH=$source/scripts "$folder/compile/bin/python" -c "$all)" "$source/src/ramerge/core/kernels/bundles"

step "build"
environment tools build twine check-wheel-contents uv
"$folder/tools/bin/python" -m build --outdir "$dist" "$source" >"$folder/build.log"
"$folder/tools/bin/python" -m build --outdir "$folder/dist-eval" "$source/packages/ramerge-eval" >>"$folder/build.log"
ls -l "$dist" "$folder/dist-eval"

step "inspect"
"$folder/tools/bin/twine" check --strict "$dist"/* "$folder/dist-eval"/*
(cd "$source" && "$folder/tools/bin/check-wheel-contents" "$dist"/*.whl)
[ "$(stat --format %s "$dist"/*.whl)" -lt 8000000 ] || { echo "the wheel has 8 MB or more"; exit 1; }
unzip -l "$dist"/*.whl | grep --count 'bundles/.*zip'

step "install without the checkout, and run the demo with kernels of the wheel"
environment clean "$dist"/*.whl
cd "$folder"
"$folder/clean/bin/ramerge" --version
"$folder/clean/bin/ramerge" demo --models "$folder/models"
"$folder/clean/bin/ramerge" demo | tail -n 3
"$folder/clean/bin/python" - <<'PYTHON'
import sys

import ramerge

agents = {name: f"models/{name}" for name in ("coder", "tool", "memory")}
record = ramerge.merge({"base": "models/base", "agents": agents}, "merged", options=ramerge.Options(cache=False))
assert "numba" not in sys.modules, "a kernel was compiled"
print(record.method, "compiled nothing")
PYTHON

step "add ramerge-eval, whose commands ramerge finds"
{ "$folder/clean/bin/ramerge" table LOGS 2>&1 || true; } | grep --fixed-strings 'pip install . ./packages/ramerge-eval'
"$folder/clean/bin/pip" install --quiet --no-deps "$folder/dist-eval"/*.whl
"$folder/clean/bin/ramerge" eval --help | tail -n 3

step "run the wheel with uvx"
"$folder/tools/bin/uvx" --python "$folder/clean/bin/python" --from "$dist"/*.whl ramerge demo | tail -n 3

step "test the sdist"
tar -x -C "$folder" -f "$dist"/*.tar.gz
cd "$folder"/ramerge-*/
if [ "${TESTS:-}" = all ]; then
  make test PYTHON="$python"
else
  environment test '.[test]'
  "$folder/test/bin/python" -m pytest --quiet -m 'not full and not thorough' tests/recipe tests/linalg tests/test_api.py
fi

step "an index in a folder, from which pip installs without a network"
cd "$folder"
"$folder/clean/bin/pip" download --quiet --dest wheels "$dist"/*.whl
for file in wheels/*; do # one folder for each project, as PEP 503 names it
  name=$(basename "$file" | sed 's/-[0-9].*//' | tr '[:upper:]' '[:lower:]' | tr -s '._' '-')
  mkdir -p "$index/$name" && cp "$file" "$index/$name/"
done
"$python" -u -m http.server --bind 127.0.0.1 --directory "$index" 0 >"$folder/address" 2>"$folder/served.log" &
server=$!
trap 'kill "$server"' EXIT
until [ -s "$folder/address" ]; do sleep 0.2; done
address=$(grep --only-matching 'http://[^/ ]*' "$folder/address")
"$python" -m venv "$folder/offline"
"$folder/offline/bin/pip" install --quiet --no-cache-dir --index-url "$address" ramerge
"$folder/offline/bin/ramerge" demo | tail -n 1

step "all steps passed"
