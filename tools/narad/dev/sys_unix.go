//go:build unix && !linux

package dev

import "syscall"

// attributes of a child: a process group of its own. Only Linux can tie its life to ours.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
