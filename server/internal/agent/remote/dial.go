package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// An agent that is gone is noticed in three ways.
//
// Its process has ended: its kernel says so at once.
//
// Its machine or the way to it is gone: TCP probes a silent connection, also in the middle of
// a long thought, and gives it up after 25 s. Linux gives up data that is not acknowledged
// after deadAfter, too, since gRPC makes that the connection's TCP_USER_TIMEOUT.
//
// Its process hangs: pings of HTTP/2 would tell, but servers do not let us send many. Those of
// gRPC for Go and of gRPC Core, which Python has, cut a client off with ENHANCE_YOUR_CALM at
// the third ping that comes less than 5 minutes after the one before it while they send
// nothing; those of Node do not count. The stream of a health check is one on which a client
// pings, so that would hit between turns as well. Hence they are rare here, and the turn's
// idle timeout is what finds such an agent.
const (
	probeAfter = 10 * time.Second // of silence
	probeEvery = 5 * time.Second
	probes     = 3

	pingAfter = 5*time.Minute + 30*time.Second // of silence
	deadAfter = 20 * time.Second
)

// dial connects to an address as gRPC has resolved it, with TCP's own probes; gRPC's dialer
// leaves those to the system, whose first comes after two hours.
func dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", strings.TrimPrefix(path, "//")
	}
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: probeAfter, Interval: probeEvery, Count: probes,
	}}
	return dialer.DialContext(ctx, network, address)
}

// checkAddress refuses what gRPC would take for something else: it makes port 443 of a
// missing one and a host's name of "http://host".
func checkAddress(address string) error {
	if address == "" {
		return errors.New("address: is required")
	}
	wrong := fmt.Errorf(`address: %q is none of "host:port", "dns:///host:port" and "unix:PATH"`, address)
	if strings.HasPrefix(address, "unix:") {
		// As gRPC reads it: "unix:relative/path", "unix:/path" or "unix:///path".
		target, err := url.Parse(address)
		if err != nil || target.Host != "" || target.Path+target.Opaque == "" {
			return wrong
		}
		return nil
	}
	if rest, ok := strings.CutPrefix(address, "dns:"); ok {
		address = rest[strings.LastIndex(rest, "/")+1:] // A name server may stand between slashes.
	}
	_, port, err := net.SplitHostPort(address)
	if number, fault := strconv.ParseUint(port, 10, 16); err != nil || fault != nil || number == 0 {
		return wrong
	}
	return nil
}
