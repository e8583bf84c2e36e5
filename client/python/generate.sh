#!/bin/sh
# Generates the Python stubs from proto/: generate.sh [FOLDER] replaces FOLDER/parley/v1. The
# default is the folder of this script. It needs Go, which runs the buf of proto/tools.mod, and
# the virtual environment that README.md sets up.
set -eu
LC_ALL=C
export LC_ALL

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "${1:-$here}/parley"
out=$(cd "${1:-$here}/parley" && pwd)
bin=$here/.venv/bin
if ! [ -x "$bin/python" ]; then
	echo "generate.sh: no virtual environment in $here/.venv; set it up as README.md says" >&2
	exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

cd "$root"
go tool -modfile=proto/tools.mod buf build proto --path proto/parley/v1 \
	--as-file-descriptor-set --output "$work/complete.binpb"
"$bin/python" "$root/client/plain_descriptors.py" "$work/complete.binpb" "$work/plain.binpb"

protoc() {
	"$bin/python" -m grpc_tools.protoc --descriptor_set_in="$work/plain.binpb" \
		--plugin="$bin/protoc-gen-mypy" --plugin="$bin/protoc-gen-mypy_grpc" "$@"
}
mkdir "$work/out"
cd "$root/proto"
protoc --python_out="$work/out" --mypy_out=quiet:"$work/out" parley/v1/*.proto
protoc --grpc_python_out="$work/out" --mypy_grpc_out=quiet:"$work/out" parley/v1/*_service.proto
echo '"""The API of Parley, generated from proto/parley/v1 by generate.sh."""' >"$work/out/parley/v1/__init__.py"

rm -rf "$out/v1"
mv "$work/out/parley/v1" "$out/v1"
