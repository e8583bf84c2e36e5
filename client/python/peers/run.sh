#!/bin/sh
# Tests adapters with their frameworks: run.sh [NAME...], where NAME is a folder beside this script;
# without a name, all of them. It needs PARLEYD, the path of a parleyd. For each it
#
#   - sets up .peers/NAME, a virtual environment with the packages of NAME/requirements.txt,
#   - checks the types of parley/adapters/NAME.py, or of the package NAME, if there is one, and of the tests in NAME,
#   - runs the tests in NAME, and then NAME/suite.sh, if there is one: the framework's own tests.
#
# Without PARLEY_LONG=1 it leaves out the tests with the mark long, and suite.sh.
#
# suite.sh runs in .peers/NAME/work with the environment's programs first on PATH. What it downloads
# stays there. It ends with 0 only if each test has the result that NAME/README.md gives.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=$(dirname "$here")
[ -x "${PARLEYD:-}" ] || { echo "run.sh: set PARLEYD to the path of a parleyd" >&2; exit 1; }
[ $# -gt 0 ] || set -- $(cd "$here" && for folder in */; do echo "${folder%/}"; done)

failed=
for name; do
	peer=$here/$name
	venv=$python/.peers/$name
	if ! [ "$venv/.stamp" -nt "$peer/requirements.txt" ]; then
		echo "setting up client/python/.peers/$name as pinned in its requirements.txt"
		rm -rf "$venv"
		python3 -m venv "$venv"
		"$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$peer/requirements.txt"
		"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable "$python"
		touch "$venv/.stamp"
	fi
	echo "== $name"
	(
		PATH=$venv/bin:$PATH
		export PATH PARLEYD
		cd "$python"
		set -- "parley/adapters/$name.py"
		[ -f "$1" ] || set -- "parley/adapters/$name"/*.py
		[ -f "$1" ] || set -- # The tests are those of an API of the server.
		MYPYPATH=tests mypy --config-file pyproject.toml --exclude '^$' "$@" "peers/$name" || exit 1
		if [ -z "${PARLEY_LONG:-}" ]; then
			exec pytest -q -m "not long" "peers/$name"
		fi
		pytest -q "peers/$name" || exit 1
		if [ -f "$peer/suite.sh" ]; then
			mkdir -p "$venv/work"
			cd "$venv/work"
			sh "$peer/suite.sh"
		fi
	) || failed="$failed $name"
done
[ -z "$failed" ] || { echo "run.sh: failed:$failed" >&2; exit 1; }
