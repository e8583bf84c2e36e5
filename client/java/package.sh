#!/bin/sh
# Checks the artifacts that would be published: package.sh. It needs PARLEYD, the path of a parleyd, and Maven. It
#
#   - installs the artifacts in an empty local repository, as README.md says,
#   - builds a new project there with them and with Spring AI, as their users do,
#   - runs the snippet of Spring AI in ../adapters.md with a server.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ -x "${PARLEYD:-}" ] || { echo "package.sh: set PARLEYD to the path of a parleyd" >&2; exit 1; }
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
maven() {
	mvn --batch-mode --no-transfer-progress --quiet -Dmaven.repo.local="$work/repository" "$@"
}

# A copy, so that the build leaves nothing here.
mkdir "$work/source"
cd "$here"
tar -cf - --exclude=target . | tar -xf - -C "$work/source"
maven -f "$work/source/pom.xml" -DskipTests install

version() {
	sed -n "s|.*<$1.version>\(.*\)</$1.version>.*|\1|p" "$here/pom.xml"
}
mkdir -p "$work/project/src/main/java"
cd "$work/project"
cat >pom.xml <<EOF
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>com.example</groupId>
  <artifactId>project</artifactId>
  <version>1</version>
  <properties>
    <maven.compiler.source>17</maven.compiler.source>
    <maven.compiler.target>17</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <dependencies>
    <dependency>
      <groupId>dev.parley</groupId>
      <artifactId>parley-spring-ai</artifactId>
      <version>0.1.0</version>
    </dependency>
    <dependency>
      <groupId>org.springframework.ai</groupId>
      <artifactId>spring-ai-model</artifactId>
      <version>$(version spring-ai)</version>
    </dependency>
  </dependencies>
</project>
EOF
"$PARLEYD" --grpc-address=127.0.0.1:0 --http-address= --store=memory --log-format=json \
	--data-dir="$work/data" 2>"$work/server.log" &
server=$!
address=
while [ -z "$address" ]; do
	kill -0 "$server" || { cat "$work/server.log" >&2; exit 1; }
	address=$(sed -n 's/.*"msg":"serving grpc".*"address":"\([^"]*\)".*/\1/p' "$work/server.log")
	[ -n "$address" ] || sleep 0.1
done
sed -n '/^## Spring AI/,/^## /{/^```java/,/^```$/{/^```/!p;};}' "$here/../adapters.md" |
	sed "s/127.0.0.1:50051/$address/" >src/main/java/SpringMemory.java
maven compile dependency:copy-dependencies -DincludeScope=runtime
printed=$(java -cp 'target/classes:target/dependency/*' SpringMemory 2>"$work/log") || { cat "$work/log" >&2; exit 1; }
[ "$printed" = 'Which libraries keep state?
Zustand and Jotai do.' ] || { echo "package.sh: the program printed: $printed" >&2; exit 1; }
echo "the artifacts of client/java work in a new project"
