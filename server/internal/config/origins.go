package config

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
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
			if !isOrigin(origin) {
				return nil, fmt.Errorf("%.80q is no origin; write scheme and host, as in https://app.example or http://localhost:3000", origin)
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

// isOrigin tells whether browsers send s as the Origin of a page: they write it in this one way.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" &&
		s == u.Scheme+"://"+u.Host && s == strings.ToLower(s) && !strings.ContainsAny(u.Host, "*@")
}
