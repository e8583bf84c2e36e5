#!/bin/sh
# Installs the missing systems that benchcompare compares with this service. A system that cannot be
# installed is listed in the table as not installed.
set -eu

missing=
services=
want() { # command, package, service
	command -v "$1" >/dev/null || ls /usr/lib/postgresql/*/bin/"$1" >/dev/null 2>&1 || { missing="$missing $2"; services="$services $3"; }
}
want etcd etcd-server etcd
want redis-server redis-server redis-server
want postgres postgresql postgresql
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "not installed and not measured:$missing; on Debian: apt-get install$missing" >&2
	exit 0
fi

echo "installing$missing"
# The benchmark starts the systems itself. This policy keeps the packages from starting services.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	trap 'exit 1' HUP INT TERM
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
apt-get update -qq
# shellcheck disable=SC2086 # A list of words.
apt-get install -qq -y --no-install-recommends $missing
if command -v systemctl >/dev/null; then
	# shellcheck disable=SC2086
	systemctl --quiet disable $services || true # Without a running systemd there is nothing to disable.
fi
