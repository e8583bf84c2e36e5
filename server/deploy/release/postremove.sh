#!/bin/sh
# A removal of the package keeps configuration and conversations. A purge deletes the configuration. It keeps the
# conversations and prints the command that deletes them.
set -e
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
if [ "$1" = purge ]; then
	deb-systemd-helper purge parleyd.service >/dev/null || true
	rmdir "$DPKG_ROOT/etc/parley" 2>/dev/null || true
	data=$DPKG_ROOT/var/lib/parley
	if [ -e "$data/parley.db" ]; then
		# With DynamicUser, the first of these is a link to the second.
		echo "conversations stay in $data; delete them with: rm -rf $data $DPKG_ROOT/var/lib/private/parley" >&2
	fi
fi
