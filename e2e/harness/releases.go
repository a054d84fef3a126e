package harness

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// Release is one of the two releases that a cluster may be of at once.
type Release string

// The releases. The previous one is the stand-in that the build tag release_prev
// makes (package release).
const (
	Current  Release = "current"
	Previous Release = "previous"
)

// previousDir is where the stand-in's programs are built, below the current ones:
// a further run builds only what changed.
const previousDir = "release_prev"

// buildPrevious builds the daemons of the previous release, once per test run.
var buildPrevious = sync.OnceValues(func() (string, error) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "bin", previousDir)
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "release_prev", "-o", dir+string(filepath.Separator))
	for _, role := range []string{Voter, Storage, Gateway} {
		cmd.Args = append(cmd.Args, "./apps/"+role)
	}
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as make builds the current ones
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the previous release: %w: %s", err, out)
	}
	return dir, nil
})

// BinaryOf is the path of a daemon of one release.
func BinaryOf(t testing.TB, r Release, name string) string {
	t.Helper()
	if r == Current {
		return Binary(t, name)
	}
	dir, err := buildPrevious()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// Programs is what `narad dev` starts its nodes from, each role of a release that
// can change while the cluster runs.
type Programs struct {
	t   testing.TB
	dir string
}

// NewPrograms starts with every role of one release.
func NewPrograms(t testing.TB, r Release) *Programs {
	t.Helper()
	p := &Programs{t: t, dir: t.TempDir()}
	// narad looks for the others beside itself, so it cannot be a link.
	if err := copyProgram(Binary(t, "narad"), filepath.Join(p.dir, "narad")); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{Voter, Storage, Gateway} {
		p.Use(role, r)
	}
	return p
}

// Use lets every process of a role that starts from now on be of a release.
func (p *Programs) Use(role string, r Release) {
	p.t.Helper()
	link := filepath.Join(p.dir, role)
	err := os.Symlink(BinaryOf(p.t, r, role), link+".new")
	if err == nil {
		err = os.Rename(link+".new", link)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func copyProgram(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
