#!/bin/sh
# A removal of the package keeps configuration and conversations. A purge deletes the configuration. It keeps the
# conversations and prints the command that deletes them.
set -e
[ -n "$DPKG_ROOT" ] || [ ! -d /run/systemd/system ] || systemctl daemon-reload
if [ "$1" = purge ]; then
	data=$DPKG_ROOT/var/lib/parley
	rmdir "$DPKG_ROOT/etc/parley" "$data" 2>/dev/null || true
	if [ -e "$data/parley.db" ]; then
		echo "conversations stay in $data; delete them with: rm -r $data/ $DPKG_ROOT/var/lib/private/parley" >&2
	fi
fi
