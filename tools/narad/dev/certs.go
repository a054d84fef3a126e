package dev

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"

	"github.com/narad-mq/narad/libs/tlsconf/certs"
)

// certsDir is where a cluster with TLS has its certificates.
func certsDir(dataDir string) string { return filepath.Join(dataDir, "certs") }

// secretFile is where a cluster with TLS has the secret of its gossip key.
func secretFile(dataDir string) string { return filepath.Join(certsDir(dataDir), "cluster-secret") }

// makeSecret makes the secret, if there is none.
func makeSecret(path string) error {
	if exists(path) {
		return nil
	}
	if err := os.WriteFile(path, []byte(rand.Text()+"\n"), 0o600); err != nil {
		return fmt.Errorf("cluster secret for --tls: %w", err)
	}
	return nil
}

// planeArguments says what the planes between nodes speak.
func planeArguments(id, dataDir string, secure bool) []string {
	if !secure {
		return []string{"--insecure"}
	}
	dir := certsDir(dataDir)
	at := certs.NodePaths(dir, id)
	return []string{"--tls-cert", at.Cert, "--tls-key", at.Key, "--tls-ca", certs.AuthorityPaths(dir).Cert}
}

// makeCerts makes what is missing of an authority and the nodes' certificates.
func makeCerts(dir string, nodes []node) error {
	open := certs.Open
	if at := certs.AuthorityPaths(dir); !exists(at.Cert) && !exists(at.Key) {
		open = func(dir string) (*certs.Authority, error) {
			return certs.Init(dir, "narad dev", certs.AuthorityValidity)
		}
	}
	ca, err := open(dir)
	if err != nil {
		return fmt.Errorf("certificates for --tls: %w", err)
	}
	for _, n := range nodes {
		if at := certs.NodePaths(dir, n.id); exists(at.Cert) && exists(at.Key) {
			continue
		}
		if _, err := ca.Node(dir, n.id, []string{loopback, "localhost"}, certs.NodeValidity); err != nil {
			return fmt.Errorf("certificates for --tls: %w", err)
		}
	}
	return nil
}
