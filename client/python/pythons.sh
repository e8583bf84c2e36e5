#!/bin/sh
# Sets up .pythons/VERSION, a virtual environment with the dependencies of the package, for each
# Python 3.10 or newer on PATH or in pyenv. tests/test_exit.py runs programs in all of them.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
for python in python3.10 python3.11 python3.12 python3.13 python3.14 \
	"${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python; do
	# A pyenv shim on PATH may have no version, and a Python of pyenv may be too old.
	version=$("$python" -c 'import ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
	case $version in 2.* | 3.[0-9]) continue ;; esac
	venv=$here/.pythons/$version
	[ "$venv/.stamp" -nt "$here/requirements-package.txt" ] && continue
	echo "setting up $venv"
	rm -rf "$venv"
	if "$python" -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
		--only-binary :all: --requirement "$here/requirements-package.txt"; then
		touch "$venv/.stamp"
	else
		echo "pythons.sh: skipping Python $version: its packages cannot be installed" >&2
		rm -rf "$venv"
	fi
done
