#!/bin/sh
# Stops the server if the package is removed, but not if it is upgraded: the new version restarts it. $1 is "remove" or
# "upgrade" in Debian, and the number of versions that stay in RPM.
set -e
case "$1" in
remove)
	if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
		deb-systemd-invoke stop parleyd.service || true
	fi
	;;
0)
	if [ -d /run/systemd/system ]; then
		systemctl --no-reload disable --now parleyd.service || true
	elif command -v systemctl >/dev/null; then
		systemctl --no-reload disable parleyd.service || true
	fi
	;;
esac
