#!/bin/sh
# Runs the SDK's own tests of each file that uses SQLiteSession, with the session of suite_plugin.py in its place:
# suite.sh [ARGUMENT...], with arguments for pytest. The plugin is the one beside this script, or in the folder that
# SUITE names. The tests come from PyPI. README.md beside the plugin has the results.
set -eu

scripts=$(cd "$(dirname "$0")" && pwd)
here=${SUITE:-$scripts}
version=0.24.0
expect=$(sed -n 's/^Results: `\(.*\)`$/\1/p' "$here/README.md")

sources=openai_agents-$version
if ! [ -d "$sources" ]; then
	pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--no-binary openai-agents "openai-agents==$version"
	# The tests import the installed package, not src.
	tar -xzf "$sources.tar.gz" "$sources/tests" "$sources/pyproject.toml" "$sources/README.md"
fi
cd "$sources"
# tests/tracing imports the SDK in processes of its own, where nothing is replaced.
files=$(grep -rlE --include='test_*.py' '^from agents.*[ ,]SQLiteSession|^    SQLiteSession,$' tests |
	grep -v '^tests/tracing/' | sort)
PYTHONPATH=$here:$scripts/../../tests exec python -m pytest -q --tb=short --no-header -p suite_plugin -p no:cacheprovider \
	--expect "$expect" "$@" $files
