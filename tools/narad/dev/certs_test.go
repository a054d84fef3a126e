package dev

import (
	"os"
	"testing"

	"github.com/narad-mq/narad/libs/tlsconf"
	"github.com/narad-mq/narad/libs/tlsconf/certs"
)

// TestCertificates: made once, only what is missing later, and good for the nodes.
func TestCertificates(t *testing.T) {
	dir := certsDir(t.TempDir())
	nodes := []node{{id: "voter-1"}, {id: "storage-1"}}
	if err := makeCerts(dir, nodes[:1]); err != nil {
		t.Fatal(err)
	}
	voter := certs.NodePaths(dir, "voter-1")
	before, err := os.ReadFile(voter.Cert)
	if err != nil {
		t.Fatal(err)
	}
	if err := makeCerts(dir, nodes); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(voter.Cert); err != nil || string(after) != string(before) {
		t.Errorf("a certificate was replaced: %v", err)
	}
	for _, n := range nodes {
		at := certs.NodePaths(dir, n.id)
		files := tlsconf.Files{Cert: at.Cert, Key: at.Key, CA: certs.AuthorityPaths(dir).Cert}
		if _, err := tlsconf.Load(tlsconf.Config{Files: files, Host: loopback}); err != nil {
			t.Errorf("%s cannot start: %v", n.id, err)
		}
	}
	if err := os.Remove(certs.AuthorityPaths(dir).Key); err != nil {
		t.Fatal(err)
	}
	if err := makeCerts(dir, nodes); err == nil {
		t.Error("half an authority was taken for none")
	}
}
