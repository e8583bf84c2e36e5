#!/bin/sh
# $1 is "configure", or "abort-…" after a failed removal, in Debian, and the number of installed versions in RPM.
set -e
unit=parleyd.service
running() { [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; }
case "$1" in
configure | abort-*)
	# As usual in Debian, the first installation enables and starts the server. The helpers remember whether someone has
	# disabled it, also while the package is removed, and obey policy-rc.d.
	if deb-systemd-helper --quiet was-enabled $unit; then
		deb-systemd-helper enable $unit >/dev/null || true
	else
		deb-systemd-helper update-state $unit >/dev/null || true
	fi
	if running; then
		systemctl daemon-reload || true
		deb-systemd-invoke restart $unit || echo 'parleyd does not start: see journalctl -u parleyd' >&2
	fi
	;;
*)
	if running; then
		systemctl daemon-reload || true
		systemctl try-restart $unit || echo 'parleyd does not start: see journalctl -u parleyd' >&2
	fi
	;;
esac
