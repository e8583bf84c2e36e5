package a2a

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"golang.org/x/net/http/httpguts"
)

// maxTarget is the maximum size of each text of a configuration, in bytes.
const maxTarget = 2048

// errPrivate is the error for a target whose address is not public.
var errPrivate = errors.New(
	"its address is not public; use a public one, or start the server with --a2a-push-private")

// check returns an error if notifications cannot or must not be sent to a target. The error begins with the name of the
// field. A name is resolved, and its addresses are checked, when a notification is sent.
func (n *Notifier) check(c *a2a.PushConfig) error {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || len(c.URL) > maxTarget:
		return fmt.Errorf("url: must be a URL such as https://client.example/notify, of at most %d bytes", maxTarget)
	case u.User != nil:
		return errors.New("url: must not have a user and a password; use authentication")
	case u.Scheme != "https" && (!n.private || u.Scheme != "http"):
		return errors.New("url: must begin with https://, unless the server is started with --a2a-push-private")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !n.private && !isPublic(ip) {
		return fmt.Errorf("url: %w", errPrivate)
	}
	if len(c.Token) > maxTarget || !httpguts.ValidHeaderFieldValue(c.Token) {
		return fmt.Errorf("token: must be printable, of at most %d bytes", maxTarget)
	}
	if c.Auth == nil {
		return nil
	}
	if !httpguts.ValidHeaderFieldName(c.Auth.Scheme) {
		return errors.New("authentication.scheme: must be a scheme of HTTP such as Bearer")
	}
	if len(c.Auth.Credentials) > maxTarget || !httpguts.ValidHeaderFieldValue(c.Auth.Credentials) ||
		strings.TrimSpace(c.Auth.Credentials) != c.Auth.Credentials {
		return fmt.Errorf("authentication.credentials: must be printable, of at most %d bytes", maxTarget)
	}
	return nil
}

// dialer returns a dialer that connects to public addresses only, unless private is true. It checks the address to
// which it connects, since a name may have another one each time that it is resolved.
func dialer(private bool) *net.Dialer {
	d := &net.Dialer{Timeout: attemptTime}
	if private {
		return d
	}
	d.Control = func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || !isPublic(at.Addr()) {
			return errPrivate
		}
		return nil
	}
	return d
}

// isPublic reports whether an address is one of the public internet.
func isPublic(ip netip.Addr) bool {
	ip = ip.Unmap()
	if !ip.IsValid() || !ip.IsGlobalUnicast() || ip.IsPrivate() {
		return false
	}
	// All other addresses of IPv6 are not public, or contain one of IPv4, which may be private.
	if ip.Is6() && !netip.MustParsePrefix("2000::/3").Contains(ip) {
		return false
	}
	for _, prefix := range reserved() {
		if prefix.Contains(ip) {
			return false
		}
	}
	return true
}

// reserved returns networks that are neither private nor public: the registries of RFC 6890, RFC 6598 for
// 100.64.0.0/10, and networks that are translated to addresses of IPv4, which may be private ones.
func reserved() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}
