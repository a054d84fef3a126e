package dev

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is one node: its supervisor and, most of the time, a child.
type process struct {
	node
	cluster *Cluster
	index   int
	path    string        // of the program
	stop    chan struct{} // closed: stop for good
	done    chan struct{} // closed: stopped for good
	err     error         // of the stop; read after done

	mu     sync.Mutex // guards what follows
	child  *os.Process
	killed bool // by kill: the child had its chance
}

// supervise keeps a child running until stop is closed.
func (p *process) supervise() {
	defer close(p.done)
	for p.mayStart() {
		ended, err := p.start()
		if err != nil {
			p.cluster.logf("%s cannot be started: %v", p.id, err)
		} else {
			select {
			case err := <-ended:
				p.cluster.logf("%s ended (%s), starts again in %s%s", p.id, exitText(err), restartDelay, p.lastWords(err))
				p.noteEnd()
			case <-p.stop:
				p.err = p.terminate(ended)
				return
			}
		}
		select {
		case <-time.After(restartDelay):
		case <-p.stop:
			return
		}
	}
}

// mayStart waits while the hold file is there. False: stop.
func (p *process) mayStart() bool {
	hold := p.cluster.file(p.id + ".hold")
	told := false
	for {
		select {
		case <-p.stop:
			return false
		default:
		}
		if !exists(hold) {
			return true
		}
		if !told {
			p.cluster.logf("%s is held: remove %s to start it", p.id, hold)
			told = true
		}
		select {
		case <-p.stop:
			return false
		case <-time.After(lookEvery):
		}
	}
}

// start runs the child and returns the channel on which its end comes.
func (p *process) start() (<-chan error, error) {
	log, err := os.OpenFile(p.cluster.file(p.id+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, fileMode)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = environment(os.Environ())
	cmd.SysProcAttr = attributes()
	started := make(chan error)
	p.cluster.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	p.mu.Lock()
	p.child = cmd.Process
	p.mu.Unlock()
	pid := cmd.Process.Pid
	err = replace(p.cluster.file(p.id+".pid"), []byte(strconv.Itoa(pid)+"\n"))
	if err = errors.Join(err, p.cluster.setPID(p.index, pid)); err != nil {
		p.cluster.logf("%s: %v", p.id, err) // it runs all the same
	}
	return ended, nil
}

// environment leaves out NARAD_*: what steers this command must not steer the nodes.
func environment(all []string) []string {
	var kept []string
	for _, e := range all {
		if !strings.HasPrefix(e, "NARAD_") {
			kept = append(kept, e)
		}
	}
	return kept
}

// noteEnd forgets the child, so that nobody signals a stranger who got its pid.
func (p *process) noteEnd() {
	p.mu.Lock()
	p.child = nil
	p.mu.Unlock()
	err := remove(p.cluster.file(p.id + ".pid"))
	if err = errors.Join(err, p.cluster.setPID(p.index, 0)); err != nil {
		p.cluster.logf("%s: %v", p.id, err)
	}
}

// terminate asks the child to stop and waits; kill may come in between.
func (p *process) terminate(ended <-chan error) error {
	p.mu.Lock()
	child := p.child
	p.mu.Unlock()
	var asked error
	if err := child.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		asked = fmt.Errorf("ask %s to stop: %w", p.id, err)
	}
	err := <-ended
	p.noteEnd()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.killed:
		return fmt.Errorf("%s did not stop in time and was killed; see %s", p.id, p.cluster.file(p.id+".log"))
	case err != nil && !endedBy(err, syscall.SIGTERM):
		return fmt.Errorf("%s stopped with a failure (%s)%s", p.id, exitText(err), p.lastWords(err))
	}
	return asked
}

// endedBy tells whether the signal itself ended the child: it had just been
// started and did not listen for it yet, so there was nothing to stop in order.
func endedBy(err error, s syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == s
}

// kill ends the child without asking.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return
	}
	p.killed = true
	_ = p.child.Kill() // it may have ended by itself just now
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// lastWords of a child that ended by itself; one that was killed said nothing about it.
func (p *process) lastWords(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) && !exit.Exited() {
		return ""
	}
	line := lastLine(p.cluster.file(p.id + ".log"))
	if line == "" {
		return ""
	}
	return ": " + line
}

// Find looks for a program beside this one, then in PATH.
func Find(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("program %s is neither beside narad nor in PATH: build it (make build) or add its directory to PATH", name)
	}
	return path, nil
}
