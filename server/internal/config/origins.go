package config

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// maxOrigins is more than anybody writes by hand.
const maxOrigins = 64

// origins are those of web pages, separated by commas; initially there are none.
func origins(target *[]string) value[[]string] {
	return value[[]string]{target, "origins", func(s string) ([]string, error) {
		var parsed []string
		for origin := range strings.SplitSeq(s, ",") {
			origin = strings.TrimSpace(origin)
			if origin == "" && strings.TrimSpace(s) == "" {
				return nil, nil // none
			}
			sent, ok := originSent(origin)
			if !ok {
				return nil, fmt.Errorf("%.80q is no origin; write scheme and host, as in https://app.example or http://localhost:3000", origin)
			}
			if sent != origin {
				return nil, fmt.Errorf("%.80q is not how browsers write this origin; write %.80s", origin, sent)
			}
			if !slices.Contains(parsed, origin) {
				parsed = append(parsed, origin)
			}
		}
		if len(parsed) > maxOrigins {
			return nil, fmt.Errorf("has %d origins, at most %d are allowed", len(parsed), maxOrigins)
		}
		return parsed, nil
	}, func(origins []string) string { return strings.Join(origins, ",") }}
}

// originSent returns the Origin header that browsers send for a page at s: in lower case, without a
// path and without the default port of the scheme. ok is false if s is not the address of a page.
func originSent(s string) (origin string, ok bool) {
	u, err := url.Parse(s)
	if err != nil || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return "", false
	}
	host, ok := hostSent(u.Hostname())
	if !ok {
		return "", false
	}
	if u.Port() == "" {
		return u.Scheme + "://" + host, true
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		return "", false
	}
	if port == map[string]uint64{"http": 80, "https": 443}[u.Scheme] {
		return u.Scheme + "://" + host, true
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.Trim(host, "[]"), strconv.FormatUint(port, 10)), true
}

// hostSent is how browsers write the host of an origin: an IPv6 address in brackets and as short
// as can be, without an IPv4 address in it, a name in ASCII.
func hostSent(host string) (sent string, ok bool) {
	if strings.Contains(host, ":") {
		address, err := netip.ParseAddr(host)
		if err != nil || address.Zone() != "" {
			return "", false
		}
		if address.Is4In6() {
			b := address.As16()
			return fmt.Sprintf("[::ffff:%x:%x]", binary.BigEndian.Uint16(b[12:]), binary.BigEndian.Uint16(b[14:])), true
		}
		return "[" + address.String() + "]", true
	}
	// Browsers allow "_", unlike the rules for names of mail servers.
	names := idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false), idna.StrictDomainName(false), idna.CheckHyphens(false))
	sent, err := names.ToASCII(host)
	if err != nil || sent == "" || strings.ContainsAny(sent, "*@%:/?#[]\\^|<> ") {
		return "", false
	}
	// What ends in a number is an IPv4 address to them, in whatever form.
	if bare := strings.TrimSuffix(sent, "."); isNumber(bare[strings.LastIndexByte(bare, '.')+1:]) {
		address, err := netip.ParseAddr(bare)
		return address.String(), err == nil
	}
	return sent, true
}

// isNumber says whether browsers take the last part of a host for a number.
func isNumber(part string) bool {
	if digits, ok := strings.CutPrefix(part, "0x"); ok {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return part != "" && strings.Trim(part, "0123456789") == ""
}
