#!/bin/sh
# Builds the wheel and the sdist of parley-client in dist/ of this folder, and tries both: each is
# installed in a virtual environment of its own, with the dependencies of requirements-package.txt,
# and makes a call to a parleyd. It needs PARLEYD, the path of a parleyd.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ -x "${PARLEYD:-}" ] || { echo "package.sh: set PARLEYD to the path of a parleyd" >&2; exit 1; }
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1

# A copy, so that the build leaves nothing here.
mkdir "$work/source"
cd "$here"
tar -cf - parley README.md pyproject.toml requirements-package.txt | tar -xf - -C "$work/source"
cp ../../LICENSE "$work/source"
find "$work/source" -name __pycache__ -prune -exec rm -rf {} +

python3 -m venv "$work/build"
"$work/build/bin/pip" install --requirement requirements-build.txt
# The times in the archives are that of the commit: the same sources make the same files.
SOURCE_DATE_EPOCH=$(git -C "$here" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
"$work/build/bin/python" -m build --no-isolation --outdir "$work/dist" "$work/source" >"$work/log" 2>&1 ||
	{ cat "$work/log" >&2; exit 1; }

"$PARLEYD" --grpc-address=127.0.0.1:0 --http-address= --store=memory --log-format=json \
	--data-dir="$work/data" 2>"$work/server.log" &
server=$!

for file in "$work/dist"/*; do
	venv=$work/venv
	rm -rf "$venv"
	python3 -m venv "$venv"
	"$venv/bin/pip" install --requirement requirements-package.txt
	# pip builds the sdist with the setuptools of the environment.
	case $file in *.tar.gz) "$venv/bin/pip" install --requirement requirements-build.txt ;; esac
	"$venv/bin/pip" install --no-deps --no-build-isolation "$file"
	# -I: the folder of the script, which has the sources, is not searched.
	"$venv/bin/python" -I package_check.py "$work/server.log"
	echo "package.sh: ${file##*/} works"
done
rm -rf dist
cp -r "$work/dist" dist
