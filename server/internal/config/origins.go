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

// maxOrigins is a limit that no configuration written by hand should reach.
const maxOrigins = 64

// origins is a value of origins of web pages, separated by commas. The initial value is empty.
func origins(target *[]string) value[[]string] {
	return value[[]string]{target, "origins", func(s string) ([]string, error) {
		var parsed []string
		for origin := range strings.SplitSeq(s, ",") {
			origin = strings.TrimSpace(origin)
			if origin == "" && strings.TrimSpace(s) == "" {
				return nil, nil // An empty setting means no origins.
			}
			canonical, ok := canonicalOrigin(origin)
			if !ok {
				return nil, fmt.Errorf("%.80q is not an origin; "+
					"use scheme and host, as in https://app.example or http://localhost:3000", origin)
			}
			if canonical != origin {
				return nil, fmt.Errorf("%.80q is not the form that browsers send; use %.80s", origin, canonical)
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

// origin is a value of a scheme and a host. The initial value is empty.
func origin(target *string) value[string] {
	return value[string]{target, "url", func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		canonical, ok := canonicalOrigin(strings.TrimSuffix(s, "/"))
		if !ok {
			return "", fmt.Errorf("%.80q is not a scheme with a host; use, for example, https://agents.example", s)
		}
		return canonical, nil
	}, func(s string) string { return s }}
}

// canonicalOrigin returns the Origin header that browsers send for a page at s: in lower case,
// without a path and without the default port of the scheme. ok is false if s is not the address of
// a page.
func canonicalOrigin(s string) (origin string, ok bool) {
	u, err := url.Parse(s)
	if err != nil || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return "", false
	}
	host, ok := canonicalHost(u.Hostname())
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

// canonicalHost returns the host of an origin as browsers send it. An IPv6 address is in brackets
// and in its shortest form, without an IPv4 address in it. A name is in ASCII.
func canonicalHost(host string) (canonical string, ok bool) {
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
	// Browsers allow "_", which the rules for mail servers do not.
	names := idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false), idna.StrictDomainName(false),
		idna.CheckHyphens(false))
	canonical, err := names.ToASCII(host)
	if err != nil || canonical == "" || strings.ContainsAny(canonical, "*@%:/?#[]\\^|<> ") {
		return "", false
	}
	// Browsers parse a host whose last part is a number as an IPv4 address, in any notation.
	if name := strings.TrimSuffix(canonical, "."); isNumber(name[strings.LastIndexByte(name, '.')+1:]) {
		address, err := netip.ParseAddr(name)
		return address.String(), err == nil
	}
	return canonical, true
}

// isNumber reports whether browsers take the last part of a host for a number.
func isNumber(part string) bool {
	if digits, ok := strings.CutPrefix(part, "0x"); ok {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return part != "" && strings.Trim(part, "0123456789") == ""
}
