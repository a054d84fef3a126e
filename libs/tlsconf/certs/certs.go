// Package certs makes the certificates of a cluster: one authority and one
// certificate for each node, ECDSA P-256, in PEM. It serves `narad certs`,
// `narad dev --tls` and tests; programs of a cluster never make any.
//
// Invariants: a certificate serves as that of a server and of a client, and ends
// no later than its authority. Init and Node write no file over another
// (TestNeverOverwrites), keys and certificates with mode 0600. Whoever has the
// authority's key can join the cluster: it belongs on no node.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	// AuthorityValidity is the usual one of an authority: replacing it is work.
	AuthorityValidity = 10 * 365 * 24 * time.Hour
	// NodeValidity is the usual one of a node: replacing it is a copy of two files.
	NodeValidity = 365 * 24 * time.Hour
	// clockSlack lets machines whose clock is a little behind use a new certificate.
	clockSlack = 5 * time.Minute
	serialBits = 127
)

// Pair is a certificate and its key, in PEM.
type Pair struct{ Cert, Key []byte }

// Authority signs certificates.
type Authority struct {
	Pair
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes one that ends after valid from now on.
func NewAuthority(name string, valid time.Duration) (*Authority, error) {
	tmpl, err := template(name, valid)
	if err != nil {
		return nil, err
	}
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.MaxPathLenZero = true, true, true
	tmpl.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the authority: %w", err)
	}
	p, err := sign(tmpl, tmpl, key, key)
	if err != nil {
		return nil, err
	}
	return ParseAuthority(p)
}

// ParseAuthority reads one back.
func ParseAuthority(p Pair) (*Authority, error) {
	certBlock, _ := pem.Decode(p.Cert)
	keyBlock, _ := pem.Decode(p.Key)
	if certBlock == nil || keyBlock == nil {
		return nil, errors.New("read the authority: no PEM")
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, errors.New("read the authority's key: it is none in PKCS #8")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) || !cert.IsCA {
		return nil, errors.New("read the authority: its certificate and key do not belong together, or are no authority's")
	}
	return &Authority{Pair: p, cert: cert, key: key}, nil
}

// Issue makes the certificate of a node. It names the node id and the hosts, each
// a DNS name or an IP address. valid may be longer than the authority's rest only
// if it is NodeValidity, the usual one, which is cut.
func (a *Authority) Issue(nodeID string, hosts []string, valid time.Duration) (Pair, error) {
	tmpl, err := template(nodeID, valid)
	if err != nil {
		return Pair{}, err
	}
	if end := a.cert.NotAfter; tmpl.NotAfter.After(end) {
		if valid != NodeValidity || !time.Now().Before(end) {
			return Pair{}, fmt.Errorf("a certificate for %s would outlive its authority, which ends at %s", valid, end.Format(time.RFC3339))
		}
		tmpl.NotAfter = end
	}
	tmpl.KeyUsage = x509.KeyUsageDigitalSignature
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	tmpl.DNSNames = []string{nodeID}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else if h != nodeID {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key for %s: %w", nodeID, err)
	}
	return sign(tmpl, a.cert, key, a.key)
}

func template(name string, valid time.Duration) (*x509.Certificate, error) {
	if name == "" || valid <= 0 {
		return nil, errors.New("make a certificate: a name and a validity above zero are needed")
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-clockSlack), NotAfter: now.Add(valid),
	}, nil
}

// sign makes the certificate of key's owner, by signer.
func sign(tmpl, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate of %s: %w", tmpl.Subject.CommonName, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key of %s: %w", tmpl.Subject.CommonName, err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}, nil
}
