package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Access is what a client needs besides a URL. The zero value is valid.
type Access struct {
	// Password of the user that the URL names, or of the default user. Sentinels are asked without a password.
	Password string
	// CAFile has the certificates of the authorities of the engine, in PEM form. If empty, those of the system apply.
	CAFile string
	// CertFile and KeyFile are the certificate of the client and its private key. If both are empty, it has none.
	CertFile, KeyFile string
}

const (
	enginePort   = "6379"
	sentinelPort = "26379"
	// maxURLBytes is the maximum size of a URL.
	maxURLBytes = 4 << 10
	// maxDatabase is the largest number of a database.
	maxDatabase = 1<<16 - 1
)

// ParseURL returns the options of a client of the engine at a URL:
//
//	redis://[user@]host[:port][/database]             one server; it may also be the first node of a cluster
//	redis://[user@]host:port,host:port,host:port      a cluster
//	redis+sentinel://[user@]host:port,host:port/name[/database]   the master with this name, which the Sentinels know
//
// With rediss and rediss+sentinel, all connections have TLS. A URL with a password is an error, because others can
// read it where URLs are printed. Errors continue a sentence that begins with the name of a setting. They quote only
// names of hosts, so that a password that is in the wrong place is not printed.
func ParseURL(text string, a Access) (rueidis.ClientOption, error) {
	var o rueidis.ClientOption
	if len(text) > maxURLBytes {
		return o, fmt.Errorf("has %d bytes, at most %d are allowed", len(text), maxURLBytes)
	}
	scheme, rest, ok := strings.Cut(text, "://")
	hasTLS, port := false, enginePort
	switch scheme {
	case "redis":
	case "rediss":
		hasTLS = true
	case "redis+sentinel":
		port = sentinelPort
	case "rediss+sentinel":
		hasTLS, port = true, sentinelPort
	default:
		ok = false
	}
	if !ok {
		return o, errors.New("must begin with redis://, rediss://, redis+sentinel:// or rediss+sentinel://")
	}
	rest, err := cutUser(rest, &o)
	if err != nil {
		return o, err
	}
	if strings.ContainsAny(rest, "?#") {
		return o, errors.New("must not have a query or a fragment; use redis://host:port/database")
	}
	hosts, path, _ := strings.Cut(rest, "/")
	if o.InitAddress, err = parseHosts(hosts, port); err != nil {
		return o, err
	}
	if err := parsePath(path, port == sentinelPort, &o); err != nil {
		return o, err
	}
	o.Password = a.Password
	if hasTLS {
		if o.TLSConfig, err = a.tls(); err != nil {
			return o, err
		}
		o.Sentinel.TLSConfig = o.TLSConfig // Not used without the name of a master.
	} else if a.CAFile != "" || a.CertFile != "" || a.KeyFile != "" {
		return o, errors.New("must begin with rediss:// or rediss+sentinel:// if there are files for TLS")
	}
	return withDefaults(o), nil
}

// HasTLS reports whether connections to a URL that ParseURL accepts have TLS.
func HasTLS(text string) bool { return strings.HasPrefix(text, "rediss") }

// cutUser removes the name of the user from a URL without its scheme.
func cutUser(rest string, o *rueidis.ClientOption) (string, error) {
	// The last @ counts: a password may contain others, and slashes.
	i := strings.LastIndexByte(rest, '@')
	if i < 0 {
		return rest, nil
	}
	user, err := url.PathUnescape(rest[:i])
	switch {
	case strings.Contains(rest[:i], ":"):
		return "", errors.New("must not have a password; remove it, and set --redis-password-file or --redis-password-env")
	case err != nil, user == "", strings.ContainsFunc(user, func(r rune) bool { return r <= ' ' || r == '/' || r == '@' }):
		return "", errors.New("has no valid name of a user before @")
	}
	o.Username = user
	return rest[i+1:], nil
}

// parseHosts returns the addresses of hosts that are separated by commas.
func parseHosts(text, defaultPort string) (addresses []string, err error) {
	for one := range strings.SplitSeq(text, ",") {
		address := one
		if !strings.Contains(one, ":") || strings.HasSuffix(one, "]") {
			address = one + ":" + defaultPort
		}
		host, port, err := net.SplitHostPort(address)
		n, err2 := strconv.ParseUint(port, 10, 16)
		if err != nil || err2 != nil || n == 0 || host == "" || strings.ContainsFunc(host, isNotOfHost) {
			return nil, fmt.Errorf("has no host and port at %.80q; use host:port, several separated by commas", one)
		}
		addresses = append(addresses, net.JoinHostPort(host, port))
	}
	return addresses, nil
}

// isNotOfHost reports whether neither a name of a host nor an IP address contains a character.
func isNotOfHost(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', strings.ContainsRune("-._:%", r):
		return false
	}
	return true
}

// parsePath reads the name of a master and the number of a database from what follows the hosts.
func parsePath(path string, ofSentinel bool, o *rueidis.ClientOption) error {
	database := path
	if ofSentinel {
		name, rest, _ := strings.Cut(path, "/")
		unescaped, err := url.PathUnescape(name)
		if err != nil || unescaped == "" {
			return errors.New("has no name of a master; use redis+sentinel://host:port,host:port/name")
		}
		o.Sentinel.MasterSet, database = unescaped, rest
	}
	if database == "" {
		return nil
	}
	n, err := strconv.ParseUint(database, 10, 16)
	switch {
	case err != nil || n > maxDatabase:
		return fmt.Errorf("has no valid number of a database at its end; use 0 to %d", maxDatabase)
	case n > 0 && !ofSentinel && len(o.InitAddress) > 1:
		return errors.New("must not name a database: a cluster has only database 0")
	}
	o.SelectDB = int(n)
	return nil
}

// tls returns the settings of TLS. The name of each server is that of its address.
func (a Access) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.CAFile != "" {
		data, err := os.ReadFile(a.CAFile)
		if err != nil {
			return nil, fmt.Errorf("has authorities that cannot be read: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("has authorities in %q, which has no certificate in PEM form", a.CAFile)
		}
	}
	if a.CertFile != "" || a.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("has a client certificate that cannot be used: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

const (
	// answerTime is how long the engine may take to accept a connection, and to answer.
	answerTime = 2 * time.Second
	// maxRedirections is how often a command follows a slot that has moved.
	maxRedirections = 5
)

// withDefaults returns options of a client with the settings that the store needs. Its own caches are off: a read must
// see every write that has returned.
func withDefaults(o rueidis.ClientOption) rueidis.ClientOption {
	o.DisableCache = true
	if o.ConnWriteTimeout == 0 {
		o.ConnWriteTimeout = answerTime
	}
	if o.Dialer.Timeout == 0 {
		o.Dialer.Timeout = answerTime
	}
	if o.ClusterOption.MaxMovedRedirections == 0 {
		o.ClusterOption.MaxMovedRedirections = maxRedirections
	}
	if o.RetryDelay == nil {
		o.RetryDelay = retryDelay
	}
	if o.Sentinel.MasterSet != "" && o.Sentinel.TopologyRefreshInterval == 0 {
		o.Sentinel.TopologyRefreshInterval = 5 * time.Second // A missed message about a failover would never be noticed.
	}
	return o
}

// maxRetries is how often the driver sends a read again, in about one second.
const maxRetries = 8

// retryDelay returns when the driver sends a read again after an error: not after one that took answerTime, and not
// without an end, as the driver does by default.
func retryDelay(attempts int, _ rueidis.Completed, err error) time.Duration {
	if timeout, ok := errors.AsType[net.Error](err); attempts > maxRetries || ok && timeout.Timeout() {
		return -1
	}
	return min(5*time.Millisecond<<attempts, 250*time.Millisecond)
}
