package redistest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"time"
)

// writeCertificates writes the certificate of a new authority, and a certificate for the loopback address
// with its key, which servers and clients may use. It returns the authority.
func writeCertificates(caFile, certFile, keyFile string) (*x509.CertPool, error) {
	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of tests"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "redis"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.ParseIP(host)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	roots := x509.NewCertPool()
	sign := func(path string, template *x509.Certificate, public crypto.PublicKey) error {
		signed, err := x509.CreateCertificate(rand.Reader, template, ca, public, caKey)
		if err != nil {
			return err
		}
		if template == ca {
			roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}))
		}
		return writePEM(path, "CERTIFICATE", signed)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	return roots, errors.Join(err,
		sign(caFile, ca, &caKey.PublicKey), sign(certFile, leaf, &key.PublicKey), writePEM(keyFile, "PRIVATE KEY", encoded))
}

func writePEM(path, kind string, data []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600)
}
