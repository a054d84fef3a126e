package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func parse(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestInitAndNode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	if _, err := Init(dir, "narad", AuthorityValidity); err != nil {
		t.Fatal(err)
	}
	ca, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	at, err := ca.Node(dir, "voter-1", []string{"voter-1", "voter-1.example", "10.0.0.1", "::1"}, NodeValidity)
	if err != nil {
		t.Fatal(err)
	}
	c := parse(t, at.Cert)
	if !slices.Equal(c.DNSNames, []string{"voter-1", "voter-1.example"}) || len(c.IPAddresses) != 2 || c.IsCA || c.Subject.CommonName != "voter-1" {
		t.Errorf("names %v %v, CA %t", c.DNSNames, c.IPAddresses, c.IsCA)
	}
	if err := c.CheckSignatureFrom(parse(t, AuthorityPaths(dir).Cert)); err != nil {
		t.Error(err)
	}
	for _, path := range []string{at.Cert, at.Key, AuthorityPaths(dir).Key} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	for _, id := range []string{"ca", "../x", ".hidden"} {
		if _, err := ca.Node(dir, id, nil, NodeValidity); err == nil {
			t.Errorf("a certificate for %q was written", id)
		}
	}
}

func TestNeverOverwrites(t *testing.T) {
	dir := t.TempDir()
	ca, err := Init(dir, "narad", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Init(dir, "narad", time.Hour); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second authority: %v", err)
	}
	for _, left := range []string{NodePaths(dir, "n1").Cert, NodePaths(dir, "n1").Key} {
		if err := os.WriteFile(left, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ca.Node(dir, "n1", nil, time.Minute); !errors.Is(err, os.ErrExist) {
			t.Errorf("over %s: %v", left, err)
		}
		if raw, err := os.ReadFile(left); err != nil || string(raw) != "mine" {
			t.Errorf("%s holds %q now, %v", left, raw, err)
		}
		if err := os.Remove(left); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
			t.Errorf("half a pair is left: %v, %v", entries, err)
		}
	}
}

func TestValidity(t *testing.T) {
	ca, err := NewAuthority("short", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Issue("n1", nil, 2*time.Hour); err == nil {
		t.Error("a certificate outlives its authority")
	}
	if _, err := ca.Issue("n1", nil, NodeValidity); err != nil { // the usual one is cut
		t.Error(err)
	}
	for _, bad := range []time.Duration{0, -time.Hour} {
		if _, err := ca.Issue("n1", nil, bad); err == nil {
			t.Errorf("a validity of %s was taken", bad)
		}
	}
	if _, err := ParseAuthority(Pair{}); err == nil {
		t.Error("nothing was taken for an authority")
	}
	node, err := ca.Issue("n1", nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Pair{node, {ca.Cert, node.Key}, {ca.Cert, bytes.Repeat([]byte("x"), 10)}} {
		if _, err := ParseAuthority(p); err == nil {
			t.Error("what is no authority was taken for one")
		}
	}
}
