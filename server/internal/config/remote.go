package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/secretfile"
)

// TLS contains the encryption settings of a connection to a remote agent. If it has no keys, the
// server's certificate must be trusted by the system.
type TLS struct {
	caFile     string // trusted certificates instead of those of the system
	certFile   string // client certificate, with keyFile; empty: none
	keyFile    string
	serverName string // name in the server's certificate; empty: host of the address

	config *tls.Config // made from the fields above
}

// Config returns the TLS configuration for dialing. If t is nil, it returns nil, which means
// plaintext. It must not be changed.
func (t *TLS) Config() *tls.Config {
	if t == nil {
		return nil
	}
	return t.config
}

// addRemoteFields adds the keys of remote agents.
func (f *file) addRemoteFields(fields map[string]field, a *Agent) {
	fields["address"] = f.value(dialAddress(&a.Address))
	fields["headers"] = f.headers(a, remoteHeader)
	fields["tls"] = func(key string, n *yaml.Node) {
		a.TLS = f.tls(key, n)
	}
}

func (f *file) checkRemote(key string, a *Agent, n *yaml.Node) {
	f.require(key, n, "address", "set the address of the AgentService: host:port or unix:PATH")
	host, _, _ := net.SplitHostPort(strings.TrimPrefix(a.Address, "dns:///"))
	if len(a.Headers) > 0 && a.TLS == nil && !isSocket(a.Address) && !isLoopback(host) {
		f.warn(key+".headers", child(n, "headers"), "headers are sent over the network unencrypted",
			"set tls if the service supports it")
	}
}

// remoteHeader checks a key of gRPC metadata, in lower case. It returns what is wrong, or "" if the
// key is valid.
func remoteHeader(name string) string {
	switch {
	case name == "connection", name == "content-type", name == "host", name == "te", name == "user-agent",
		strings.HasPrefix(name, "grpc-"):
		return "is set by gRPC; remove it"
	case strings.HasSuffix(name, "-bin"):
		return "would have a binary value, but only text is supported; choose a name without -bin"
	case name == "" || strings.Trim(name, metadataAlphabet) != "":
		return "is not a valid key of gRPC metadata; use letters, digits, '-', '_' and '.'"
	}
	return ""
}

// dialAddress is a value for the address of a gRPC service. Faults do not quote it.
func dialAddress(target *string) value[string] {
	return value[string]{target, "address", func(s string) (string, error) {
		hostPort := strings.TrimPrefix(s, "dns:///")
		host, port, err := net.SplitHostPort(hostPort)
		_, urlErr := url.Parse("dns:///" + hostPort) // gRPC parses the address as a URL.
		isHost := err == nil && urlErr == nil && host != "" && !strings.ContainsAny(host, "/ ") && port != "" && isPort(port)
		if !isHost && !isSocket(s) {
			return "", errors.New("must be host:port, as in 127.0.0.1:7001, or unix:PATH; ports are 1 to 65535")
		}
		return s, nil
	}, verbatim}
}

// isSocket reports whether s is unix:PATH. gRPC parses it as a URL.
func isSocket(s string) bool {
	u, err := url.Parse(s)
	return err == nil && strings.HasPrefix(s, socketPrefix) && !strings.ContainsAny(s, "?#%") && u.Host == "" &&
		u.Path+u.Opaque != ""
}

// tls reads the encryption settings of a connection. It reads and parses the files.
func (f *file) tls(key string, n *yaml.Node) *TLS {
	t := &TLS{config: &tls.Config{MinVersion: tls.VersionTLS12}}
	var cert, private []byte
	f.mapping(key, n, map[string]field{
		"server_name": f.value(text(&t.serverName, "", 1, 253, "")),
		"ca_file": func(key string, n *yaml.Node) {
			var data []byte
			if t.caFile, data = f.readPath(key, n, secretfile.MaxPEMBytes); data == nil {
				return
			}
			t.config.RootCAs = x509.NewCertPool()
			if !t.config.RootCAs.AppendCertsFromPEM(data) {
				f.fault(key, n, "names a file without a certificate in PEM form")
			}
		},
		"cert_file": func(key string, n *yaml.Node) { t.certFile, cert = f.readPath(key, n, secretfile.MaxPEMBytes) },
		"key_file": func(key string, n *yaml.Node) {
			if t.keyFile, private = f.readPath(key, n, secretfile.MaxPEMBytes); private != nil {
				f.warnReadable(key, n, t.keyFile)
			}
		},
	})
	certAt, keyAt := child(n, "cert_file"), child(n, "key_file")
	if (certAt == nil) != (keyAt == nil) {
		f.fault(key, n, "must have both cert_file and key_file, or neither")
	}
	if cert != nil && private != nil {
		pair, err := tls.X509KeyPair(cert, private)
		if err != nil {
			f.fault(key, n, "cert_file and key_file do not match: %v", err) // The error quotes neither file.
		}
		t.config.Certificates = []tls.Certificate{pair}
	}
	t.config.ServerName = t.serverName
	return t
}
