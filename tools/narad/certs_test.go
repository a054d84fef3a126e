package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/tlsconf"
)

func TestCerts(t *testing.T) {
	s := newShell(t, "")
	dir := filepath.Join(t.TempDir(), "certs")
	if _, stderr, exit := s.run("", "certs", "node", "voter-1", "--dir", dir); exit != proc.ExitFailed || !strings.Contains(stderr, "narad certs init") {
		t.Errorf("without a CA: %d, %s", exit, stderr)
	}
	s.must("", "certs", "init", "--dir", dir)
	out := s.must("", "certs", "node", "voter-1", "--dir", dir, "--host", "voter-1.example,10.0.0.1", "--host", "::1", "--valid", "1h")
	at := func(name string) string { return filepath.Join(dir, name) }
	files := tlsconf.Files{Cert: at("voter-1.pem"), Key: at("voter-1-key.pem"), CA: at("ca.pem")}
	if !strings.Contains(out, "--tls-cert "+files.Cert+" --tls-key "+files.Key+" --tls-ca "+files.CA) {
		t.Errorf("said %s", out)
	}
	for _, host := range []string{"voter-1", "voter-1.example", "10.0.0.1", "::1"} {
		if _, err := tlsconf.Load(tlsconf.Config{Files: files, Host: host}); err != nil {
			t.Errorf("dialled as %s: %v", host, err)
		}
	}
	for _, again := range [][]string{{"init"}, {"node", "voter-1"}} {
		args := append(append([]string{"certs"}, again...), "--dir", dir)
		if _, stderr, exit := s.run("", args...); exit != proc.ExitFailed || !strings.Contains(stderr, "written over") {
			t.Errorf("%v again: %d, %s", args, exit, stderr)
		}
	}
	for _, bad := range [][]string{
		{"node"}, {"node", "../x"}, {"node", "a", "b"}, {"node", "a", "--host", "h:7944"}, {"node", "a", "--valid", "0s"}, {"init", "x"}, {"init", "--name", ""},
	} {
		if _, stderr, exit := s.run("", append([]string{"certs", "--dir", dir}, bad...)...); exit != proc.ExitUsage {
			t.Errorf("%v: %d, %s", bad, exit, stderr)
		}
	}
}
