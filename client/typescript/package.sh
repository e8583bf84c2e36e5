#!/bin/sh
# Checks the package that would be published: package.sh. It needs PARLEYD, the path of a parleyd, and the packages of
# this client: `npm ci`. It
#
#   - packs the client as `npm publish` would do it,
#   - installs the tarball with npm in a new project, as its users do, without any framework,
#   - compiles a program there with the types of the package,
#   - runs it as an ES module and as CommonJS with a server.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ -x "${PARLEYD:-}" ] || { echo "package.sh: set PARLEYD to the path of a parleyd" >&2; exit 1; }
project=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$project"' EXIT
trap 'exit 1' HUP INT TERM

cd "$here"
npm pack --silent --pack-destination "$project" >/dev/null
cp .npmrc "$project"
cd "$project"
echo '{"name": "project", "private": true}' >package.json
npm install --silent --prefer-offline ./parleyhq-client-*.tgz
if [ -e node_modules/@langchain ] || [ -e node_modules/@openai ] || [ -e node_modules/@ag-ui ]; then
	echo "package.sh: the package installs a framework" >&2
	exit 1
fi

cat >use.mts <<'EOF'
import { type AppendMessagesResponse, Client, conversationId } from "@parleyhq/client";

const client = new Client(process.argv[2]!);
const id: string = conversationId("user@example.com");
const { appended }: AppendMessagesResponse = await client.appendMessages({
  conversationId: id,
  messages: [{ role: "ROLE_USER", content: "What do I need for pancakes?" }],
});
const { messages } = await client.loadConversation({ conversationId: id });
console.log(appended[0]?.sequence, messages[0]?.content);
client.close();
EOF
cat >use.cts <<'EOF'
import parley = require("@parleyhq/client");

const client = new parley.Client(process.argv[2]!);
void client.getStats().then(({ conversationCount }) => {
  console.log(conversationCount);
  client.close();
});
EOF
cat >web.mts <<'EOF'
import { type AppendMessagesResponse, Client } from "@parleyhq/client/web";

const client = new Client(`http://${process.argv[2]}`);
const { appended }: AppendMessagesResponse = await client.appendMessages({
  conversationId: "web",
  messages: [{ role: "ROLE_USER", content: "What do I need for pancakes?" }],
});
const { messages } = await client.loadConversation({ conversationId: "web" });
console.log(appended[0]?.sequence, messages[0]?.content);
client.close();
EOF
cat >tsconfig.json <<EOF
{
  "compilerOptions": {
    "module": "nodenext", "target": "es2022", "lib": ["es2023"], "strict": true,
    "typeRoots": ["$here/node_modules/@types"], "types": ["node"]
  },
  "files": ["use.mts", "use.cts", "web.mts"]
}
EOF
"$here/node_modules/.bin/tsc"

flags="--grpc-address=127.0.0.1:0 --http-address=127.0.0.1:0 --store=memory --log-format=json --interaction-log=false"
"$PARLEYD" $flags 2>server.log &
server=$!
address=
http=
while [ -z "$address" ] || [ -z "$http" ]; do
	kill -0 "$server" || { cat server.log >&2; exit 1; }
	address=$(sed -n 's/.*"msg":"serving grpc".*"address":"\([^"]*\)".*/\1/p' server.log)
	http=$(sed -n 's/.*"msg":"serving http".*"address":"\([^"]*\)".*/\1/p' server.log)
done
same() {
	[ "$1" = "$2" ] || { echo "package.sh: the program wrote $1, want $2" >&2; exit 1; }
}
same "$(node use.mjs "$address")" "1 What do I need for pancakes?"
same "$(node use.cjs "$address")" 1
same "$(node web.mjs "$http")" "1 What do I need for pancakes?"
if node --input-type=module -e 'import "@parleyhq/client/langgraph"' 2>error.log; then
	echo "package.sh: an adapter works without its framework" >&2
	exit 1
fi
grep -q "Cannot find package '@langchain/langgraph-checkpoint'" error.log || { cat error.log >&2; exit 1; }
echo "$(basename parleyhq-client-*.tgz) works"
