#!/bin/sh
# Stops the server if the package is removed, but not if it is upgraded: the new version restarts it.
set -e
case "$1" in
remove | deconfigure | 0) ;;
*) exit 0 ;;
esac
[ -z "$DPKG_ROOT" ] && command -v systemctl >/dev/null || exit 0
[ ! -d /run/systemd/system ] || systemctl stop parleyd.service
systemctl disable parleyd.service >/dev/null 2>&1 || true
