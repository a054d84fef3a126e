package tlsconf

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxFileBytes bounds one PEM file: a chain and a few authorities, not more.
const maxFileBytes = 1 << 20

const (
	readableByGroup = 0o070
	readableByOther = 0o007
)

// Files names the PEM files of one plane. The zero value is a plane without TLS.
type Files struct {
	Cert string // the certificate, then its intermediates
	Key  string // its private key; a file that others than owner and group may touch is refused
	CA   string // authorities that peers must come from; empty on a port that asks clients for no certificate
}

// Given tells whether any file is named.
func (f Files) Given() bool { return f != Files{} }

// material is what the files held at one moment.
type material struct {
	cert, key, ca []byte
	groupReadable bool // the key
}

func (m material) equal(other material) bool {
	return bytes.Equal(m.cert, other.cert) && bytes.Equal(m.key, other.key) && bytes.Equal(m.ca, other.ca)
}

func (f Files) read() (m material, err error) {
	if m.cert, _, err = readFile(f.Cert); err != nil {
		return m, fmt.Errorf("read the certificate: %w", err)
	}
	var mode os.FileMode
	if m.key, mode, err = readFile(f.Key); err != nil {
		return m, fmt.Errorf("read the key: %w", err)
	}
	if mode&readableByOther != 0 {
		return m, fmt.Errorf("the key %s has mode %04o: take it away from others (chmod 600)", f.Key, mode)
	}
	m.groupReadable = mode&readableByGroup != 0
	if f.CA == "" {
		return m, nil
	}
	if m.ca, _, err = readFile(f.CA); err != nil {
		return m, fmt.Errorf("read the CA: %w", err)
	}
	return m, nil
}

func readFile(path string) ([]byte, os.FileMode, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	if len(raw) > maxFileBytes {
		return nil, 0, fmt.Errorf("%s has more than %d bytes", path, maxFileBytes)
	}
	return raw, info.Mode().Perm(), nil
}

// pair is a certificate in use, as configurations of both sides.
type pair struct {
	leaf           *x509.Certificate
	server, client *tls.Config // read only
}

// load checks what the files hold and makes a pair of it. host is what others
// dial to reach this process; "" when nobody does.
func (m material) load(host string, now func() time.Time) (*pair, error) {
	cert, err := tls.X509KeyPair(m.cert, m.key)
	if err != nil {
		return nil, fmt.Errorf("certificate and key: %w", err)
	}
	leaf := cert.Leaf
	switch at := now(); {
	case at.Before(leaf.NotBefore):
		return nil, fmt.Errorf("the certificate is not valid before %s", leaf.NotBefore.Format(time.RFC3339))
	case at.After(leaf.NotAfter):
		return nil, fmt.Errorf("the certificate has expired at %s", leaf.NotAfter.Format(time.RFC3339))
	}
	p := &pair{leaf: leaf}
	if m.ca == nil {
		p.server = &tls.Config{
			Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, Time: now, NextProtos: []string{"http/1.1"},
		}
		return p, nil
	}
	roots, err := parseCA(m.ca)
	if err != nil {
		return nil, err
	}
	if err := verify(cert, roots, now()); err != nil {
		return nil, err
	}
	if host != "" {
		if err := leaf.VerifyHostname(host); err != nil {
			return nil, fmt.Errorf("the certificate does not name the host that others dial: %w", err)
		}
	}
	// No resumption: it would keep a peer in whose authority has been taken away,
	// and connections between nodes live long.
	p.server = &tls.Config{
		Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, Time: now,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, SessionTicketsDisabled: true,
	}
	p.client = &tls.Config{
		MinVersion: tls.VersionTLS13, Time: now, RootCAs: roots,
		// Shown whatever the server asks for: one from another CA is then refused as
		// that, and not as missing.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
	}
	return p, nil
}

// parseCA takes every certificate of a file, and nothing else.
func parseCA(raw []byte) (*x509.CertPool, error) {
	pool, n := x509.NewCertPool(), 0
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("the CA file holds a %q beside certificates", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("the CA file: %w", err)
		}
		pool.AddCert(c)
		n++
	}
	if n == 0 {
		return nil, errors.New("the CA file holds no certificate")
	}
	return pool, nil
}

// verify checks that peers with the same CA file will take the certificate, as
// that of a server and as that of a client.
func verify(cert tls.Certificate, roots *x509.CertPool, now time.Time) error {
	between := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("an intermediate certificate: %w", err)
		}
		between.AddCert(c)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := cert.Leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
		})
		if err != nil {
			return fmt.Errorf("the certificate does not stand up to the CA file, as server and client: %w", err)
		}
	}
	return nil
}
