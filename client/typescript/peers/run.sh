#!/bin/sh
# Tests the adapters with their frameworks. It needs PARLEYD, the path of a parleyd, and the packages of this
# client: `npm ci` in the folder above. It
#
#   - installs the frameworks and their test suites here, as pinned in package-lock.json,
#   - packs the client and unpacks it beside them, as its users have it,
#   - compiles the tests in test with the types of the package and of the frameworks,
#   - runs them, and the test suite of LangGraph for checkpointers. Without PARLEY_LONG=1, the tests of 300 turns are
#     left out.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ -x "${PARLEYD:-}" ] || { echo "run.sh: set PARLEYD to the path of a parleyd" >&2; exit 1; }
cd "$here/.."
npm run --silent build

cd "$here"
if ! [ node_modules/.stamp -nt package-lock.json ]; then
	npm ci --loglevel=error
	touch node_modules/.stamp
fi
package=node_modules/@parleyhq/client
rm -rf "$package" dist
mkdir -p "$package" dist
(cd .. && npm pack --ignore-scripts --loglevel=error --pack-destination "$here/dist" >/dev/null)
tar -xzf dist/parleyhq-client-*.tgz -C "$package" --strip-components=1
../node_modules/.bin/tsc
node --test --test-reporter=spec dist/*.test.js
node_modules/.bin/vitest run --globals --silent=passed-only --dir dist validation.spec
