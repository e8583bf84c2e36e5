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

// A lost agent is detected in three ways.
//
//   - Its process has ended: its kernel closes the connection at once.
//   - Its machine or the network has failed: TCP sends probes on a silent connection, also while the
//     agent computes, and closes it after 25 s. On Linux, data that is not acknowledged within deadAfter
//     closes it too, because gRPC sets that as TCP_USER_TIMEOUT.
//   - Its process hangs: the idle timeout of the turn detects that. HTTP/2 pings would too, but servers
//     limit them. gRPC for Go and gRPC Core, which Python uses, close a connection with
//     ENHANCE_YOUR_CALM at the third ping that arrives less than 5 minutes after the previous one while
//     the server sends nothing; Node has no such limit. A client also pings during the stream of a health
//     check, so this limit would apply between turns too. Pings are therefore rare here.
const (
	probeAfter = 10 * time.Second // Of silence.
	probeEvery = 5 * time.Second
	probes     = 3

	pingAfter = 5*time.Minute + 30*time.Second // Of silence.
	deadAfter = 20 * time.Second
)

// dial connects to an address that gRPC has resolved, with TCP keep-alive probes. gRPC's own dialer
// uses the system's defaults, which send the first probe after two hours.
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

// checkAddress refuses addresses that gRPC would interpret differently: it uses port 443 if none is
// given, and treats "http://host" as a host name.
func checkAddress(address string) error {
	if address == "" {
		return errors.New("address: is required")
	}
	invalid := fmt.Errorf(`address: %q is not valid; use "host:port", "dns:///host:port" or "unix:PATH"`, address)
	if strings.HasPrefix(address, "unix:") {
		// The forms that gRPC supports: "unix:relative/path", "unix:/path" or "unix:///path".
		target, err := url.Parse(address)
		if err != nil || target.Host != "" || target.Path+target.Opaque == "" {
			return invalid
		}
		return nil
	}
	if rest, ok := strings.CutPrefix(address, "dns:"); ok {
		address = rest[strings.LastIndex(rest, "/")+1:] // A name server may be between slashes.
	}
	_, port, err := net.SplitHostPort(address)
	if number, fault := strconv.ParseUint(port, 10, 16); err != nil || fault != nil || number == 0 {
		return invalid
	}
	return nil
}
