//go:build !linux

package vfs

import "os"

// syncData is the full sync where fdatasync is missing or weaker.
func syncData(f *os.File) error { return f.Sync() }
