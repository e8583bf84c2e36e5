package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxPEMBytes is what a file of certificates may have; those of a whole system are 300 KiB.
const maxPEMBytes = mib

// TLS is how a remote agent's line is encrypted. Without any key, the other end must
// have a certificate that the system trusts.
type TLS struct {
	caFile     string // trusted instead of what the system trusts
	certFile   string // shown to the other end, with keyFile; empty: none
	keyFile    string
	serverName string // in the other end's certificate; empty: the host of the address

	config *tls.Config // made of them
}

// Config is what to dial with; nil, which is plaintext, for a nil TLS. It is not to be changed.
func (t *TLS) Config() *tls.Config {
	if t == nil {
		return nil
	}
	return t.config
}

// addRemoteFields adds the keys that only remote agents have.
func (f *file) addRemoteFields(fields map[string]field, a *Agent) {
	fields["address"] = f.value(dialAddress(&a.Address))
	fields["headers"] = f.headers(a, remoteHeader)
	fields["tls"] = func(key string, n *yaml.Node) {
		a.TLS = f.tls(key, n)
	}
}

func (f *file) checkRemote(key string, a *Agent, n *yaml.Node) {
	f.require(key, n, "address", "write where the AgentService is: host:port or unix:PATH")
	host, _, _ := net.SplitHostPort(strings.TrimPrefix(a.Address, "dns:///"))
	if len(a.Headers) > 0 && a.TLS == nil && !isSocket(a.Address) && !isLoopback(host) {
		f.warn(key+".headers", child(n, "headers"), "headers go over the network unencrypted", "write tls if the service has it")
	}
}

// remoteHeader says what is wrong with a key of gRPC's metadata, in lower case; "" is nothing.
func remoteHeader(name string) string {
	switch {
	case name == "connection", name == "content-type", name == "host", name == "te", name == "user-agent",
		strings.HasPrefix(name, "grpc-"):
		return "is set by gRPC itself; leave it out"
	case strings.HasSuffix(name, "-bin"):
		return "would be bytes, and only text can be given; choose a name without -bin"
	case name == "" || strings.Trim(name, metadataAlphabet) != "":
		return "is no name in gRPC's metadata; write letters, digits, '-', '_' and '.'"
	}
	return ""
}

// dialAddress is where a gRPC service is. Faults do not quote it.
func dialAddress(target *string) value[string] {
	return value[string]{target, "address", func(s string) (string, error) {
		hostPort := strings.TrimPrefix(s, "dns:///")
		host, port, err := net.SplitHostPort(hostPort)
		_, notURL := url.Parse("dns:///" + hostPort) // gRPC reads it as one.
		isHost := err == nil && notURL == nil && host != "" && !strings.ContainsAny(host, "/ ") && port != "" && isPort(port)
		if !isHost && !isSocket(s) {
			return "", errors.New("must be host:port, as in 127.0.0.1:7001, or unix:PATH; ports are 1 to 65535")
		}
		return s, nil
	}, verbatim}
}

// isSocket tells whether s is unix:PATH. gRPC reads that as a URL.
func isSocket(s string) bool {
	u, err := url.Parse(s)
	return err == nil && strings.HasPrefix(s, socketPrefix) && !strings.ContainsAny(s, "?#%") && u.Host == "" && u.Path+u.Opaque != ""
}

// tls reads how a line is encrypted. The files are read and parsed.
func (f *file) tls(key string, n *yaml.Node) *TLS {
	t := &TLS{config: &tls.Config{MinVersion: tls.VersionTLS12}}
	var cert, private []byte
	f.mapping(key, n, map[string]field{
		"server_name": f.value(text(&t.serverName, "", 1, 253, "")),
		"ca_file": func(key string, n *yaml.Node) {
			var data []byte
			if t.caFile, data = f.contents(key, n, maxPEMBytes); data == nil {
				return
			}
			t.config.RootCAs = x509.NewCertPool()
			if !t.config.RootCAs.AppendCertsFromPEM(data) {
				f.fault(key, n, "names a file without a certificate in PEM form")
			}
		},
		"cert_file": func(key string, n *yaml.Node) { t.certFile, cert = f.contents(key, n, maxPEMBytes) },
		"key_file": func(key string, n *yaml.Node) {
			if t.keyFile, private = f.contents(key, n, maxPEMBytes); private != nil {
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
			f.fault(key, n, "cert_file and key_file do not fit: %v", err) // It quotes neither.
		}
		t.config.Certificates = []tls.Certificate{pair}
	}
	t.config.ServerName = t.serverName
	return t
}
