package client

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A user gets this module alone: no workspace, no replace, nothing but the standard library.
func TestBuildsOutsideTheWorkspace(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a module")
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"replace", "require"} {
		if strings.Contains(string(mod), word) {
			t.Fatalf("go.mod has a %q line", word)
		}
	}
	dir := t.TempDir()
	for _, pattern := range []string{"go.mod", "*.go", "batch/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no files of %s: %v", pattern, err)
		}
		for _, f := range files {
			copyFile(t, f, filepath.Join(dir, f))
		}
	}
	cmd := exec.Command("go", "build", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if strings.HasSuffix(from, "_test.go") {
		return
	}
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
