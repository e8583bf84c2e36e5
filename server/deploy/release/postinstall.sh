#!/bin/sh
# $1 is "configure" and $2 the previous version in Debian; $1 is the number of installed versions in RPM.
set -e
[ -z "$DPKG_ROOT" ] && command -v systemctl >/dev/null || exit 0
[ ! -d /run/systemd/system ] || systemctl daemon-reload
case "$1" in
configure)
	# As usual in Debian, the first installation enables and starts the server.
	[ -n "$2" ] || systemctl enable parleyd.service >/dev/null 2>&1 || true
	[ ! -d /run/systemd/system ] || systemctl restart parleyd.service ||
		echo 'parleyd does not start: see journalctl -u parleyd' >&2
	;;
2) [ ! -d /run/systemd/system ] || systemctl try-restart parleyd.service || true ;;
esac
