#!/bin/sh
# Writes the descriptors from which Maven generates the stubs: generate.sh [FOLDER] replaces
# FOLDER/parley-proto/parley.binpb. The default is the folder of this script. It needs Go, which
# runs the buf of proto/tools.mod, and the virtual environment of client/python.
set -eu
LC_ALL=C
export LC_ALL

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "${1:-$here}/parley-proto"
out=$(cd "${1:-$here}/parley-proto" && pwd)
python=$root/client/python/.venv/bin/python
if ! [ -x "$python" ]; then
	echo "generate.sh: no virtual environment in client/python/.venv; set it up as its README.md says" >&2
	exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

cd "$root"
go tool -modfile=proto/tools.mod buf build proto --path proto/parley/v1 \
	--as-file-descriptor-set --output "$work/complete.binpb"
"$python" "$root/client/plain_descriptors.py" "$work/complete.binpb" "$out/parley.binpb"
