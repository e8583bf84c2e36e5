#!/bin/sh
# Generates the stubs from proto/: generate.sh [FOLDER] replaces FOLDER/src/gen. The default is the
# folder of this script. It needs Go, which runs the buf of proto/tools.mod, and npm ci.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-$here}"
out=$(cd "${1:-$here}" && pwd)
if ! [ -x "$here/node_modules/.bin/protoc-gen-ts_proto" ]; then
	echo "generate.sh: no ts-proto in $here/node_modules; run npm ci there" >&2
	exit 1
fi
cd "$here/../.."
exec go tool -modfile=proto/tools.mod buf generate --clean \
	--template client/typescript/buf.gen.yaml --output "$out"
