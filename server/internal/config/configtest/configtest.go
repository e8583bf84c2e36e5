// Package configtest writes a configuration file for tests, with agents of every kind, and the files
// that it names. Start at [Agents].
package configtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

//go:embed agents.yaml
var agents string

// Agents writes agents.yaml and the files that it names to a temporary folder of the test: cert.pem
// with key.pem, and key and token with secrets. It returns the path of the configuration, the folder,
// and the environment variables that the configuration needs. Each secret contains "marked".
func Agents(tb testing.TB) (path, dir string, environ []string) {
	tb.Helper()
	dir = tb.TempDir()
	path = filepath.Join(dir, "parley.yaml")
	cert, key := Certificate(tb)
	for name, data := range map[string]string{
		"key": "sk-marked-file\r\n", "token": "Bearer marked-file\n", "cert.pem": cert, "key.pem": key,
		"parley.yaml": strings.NewReplacer("DIR", dir, "Basic secret", "Basic marked-literal").Replace(agents),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return path, dir, []string{"GPT_KEY=sk-marked-env", "TEAM_TOKEN=Bearer marked-env"}
}

// Certificate returns a self-signed certificate and its private key, both in PEM form. Without usages, it is for any.
func Certificate(tb testing.TB, usages ...x509.ExtKeyUsage) (cert, key string) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"planner"}, IsCA: true,
		BasicConstraintsValid: true, ExtKeyUsage: usages,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		tb.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
}
