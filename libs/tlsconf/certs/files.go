package certs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	fileMode = 0o600
	dirMode  = 0o700
	caName   = "ca"
)

// Paths are where a certificate and its key stand in a directory of certificates.
type Paths struct{ Cert, Key string }

// AuthorityPaths are ca.pem and ca-key.pem.
func AuthorityPaths(dir string) Paths { return paths(dir, caName) }

// NodePaths are <node id>.pem and <node id>-key.pem.
func NodePaths(dir, nodeID string) Paths { return paths(dir, nodeID) }

func paths(dir, name string) Paths {
	return Paths{filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")}
}

// Init makes a directory and an authority in it. It is an error that wraps
// os.ErrExist when one of the files is there already.
func Init(dir, name string, valid time.Duration) (*Authority, error) {
	a, err := NewAuthority(name, valid)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("make the directory of certificates: %w", err)
	}
	return a, write(AuthorityPaths(dir), a.Pair)
}

// Open reads the authority that Init made.
func Open(dir string) (*Authority, error) {
	at := AuthorityPaths(dir)
	cert, err := os.ReadFile(at.Cert)
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	key, err := os.ReadFile(at.Key)
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	return ParseAuthority(Pair{cert, key})
}

// Node writes a node's certificate beside its authority; see Issue. It is an
// error that wraps os.ErrExist when one of the files is there already.
func (a *Authority) Node(dir, nodeID string, hosts []string, valid time.Duration) (Paths, error) {
	if nodeID == caName || nodeID != filepath.Base(nodeID) || nodeID[0] == '.' {
		return Paths{}, fmt.Errorf("a node id %q cannot be a file name beside the authority's", nodeID)
	}
	p, err := a.Issue(nodeID, hosts, valid)
	if err != nil {
		return Paths{}, err
	}
	at := NodePaths(dir, nodeID)
	return at, write(at, p)
}

// write makes both files, or none.
func write(at Paths, p Pair) error {
	if _, err := os.Lstat(at.Cert); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("write %s: %w", at.Cert, orExists(err))
	}
	if err := writeNew(at.Key, p.Key); err != nil {
		return err
	}
	if err := writeNew(at.Cert, p.Cert); err != nil {
		return errors.Join(err, os.Remove(at.Key))
	}
	return nil
}

func orExists(err error) error {
	if err == nil {
		return os.ErrExist
	}
	return err
}

func writeNew(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(path))
	}
	return nil
}
