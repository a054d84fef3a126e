package lives

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/storage"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const (
	dataDir   = "/data"
	topicsDir = "/data/topics"
)

// machine is a storage node over its process starts.
type machine struct {
	w    *world
	id   string
	disk topic.ID64
	fs   *vfs.Mem // what the disk holds
	rep  *replica
	late lateWriter
	boot topic.ID64
	proc *process // nil: it is down
}

func newMachine(w *world, id string, disk topic.ID64) *machine {
	m := &machine{w: w, id: id, disk: disk, fs: vfs.NewMem(), rep: newReplica(w.leader), late: lateWriter{map[string]map[string][]byte{}}}
	if err := errors.Join(m.fs.MkdirAll(dataDir), m.fs.SyncDir("/")); err != nil {
		panic(err)
	}
	return m
}

func (m *machine) addr() string { return m.id + ":7944" }

// process is one process start of a storage node.
type process struct {
	m      *machine
	disk   *disk
	role   *storage.Role
	node   nodeapi.Node
	server *rpc.Server
	cancel context.CancelFunc
	ended  chan error
	served chan error
	dead   atomic.Bool // killed: nobody hears of it any more

	mu    sync.Mutex    // guards below
	point string        // where the next that comes is held
	gate  chan struct{} // closed when it is let go
}

var errKilled = errors.New("the process was killed")

// start registers anew and runs the role.
func (m *machine) start() {
	m.boot++
	m.register()
	m.rep.begin(m.w.leader.applied(), m.rep.deceived)
	p := &process{m: m, ended: make(chan error, 1), served: make(chan error, 1)}
	p.disk = &disk{p: p, under: m.fs}
	p.disk.FS = vfs.NewFault(m.fs, p.disk.rule)
	every := time.Minute
	if m.w.cfg.noSweeps {
		every = 1000 * time.Hour
	}
	role, err := storage.New(storage.Config{NodeID: m.id, DiskID: m.disk, DataDir: dataDir, SegmentBytes: 1 << 16, CacheBytes: 1 << 20, SweepEvery: every}, storage.Deps{
		View: m.rep, FS: p.disk, Confirm: m.w.confirm(m.rep, false), Hold: p.hold, BootNonce: m.boot,
		Gateways: func(string) (gatewayapi.Gateway, error) { return nil, errors.New("nobody is woken") },
	})
	if err != nil {
		if !p.dead.Load() {
			m.w.violate("%s does not start: %v", m.id, err)
		}
		m.buried(p)
		return
	}
	p.role, p.node = role, m.w.buggy(p, role.Node())
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.ended <- role.Run(ctx) }()
	p.server = rpc.NewServer(rpc.ServerConfig{NodeID: m.id, ClusterID: func() string { return clusterID }, Log: slog.New(slog.DiscardHandler)})
	nodeapi.Serve(p.server, &slowNode{p.node, p})
	ln := m.w.net.listen(m.addr())
	go func() { p.served <- p.server.Serve(ln) }()
	m.proc = p
}

func (m *machine) register() {
	m.w.leader.propose(&metastate.RegisterMember{NowMS: nowMS(), Member: topic.Member{
		ID: m.id, Role: topic.RoleStorage, DiskID: m.disk, BootNonce: m.boot, RPCAddr: m.addr(), Release: "0.2.0",
	}})
}

// kill ends the process at once: with power, what was not synced may be lost too.
func (m *machine) kill(power bool, rng *rand.Rand) {
	p := m.proc
	if p.disk.die(power, rng) {
		p.dead.Store(true)
	}
	m.bury()
}

// bury ends what is left of a process that was killed.
func (m *machine) bury() {
	p := m.proc
	m.proc = nil
	p.letGo()
	p.cancel()
	_ = p.server.Close()
	<-p.served
	<-p.ended
	_ = p.role.Close() // its disk refuses everything
	m.buried(p)
}

// buried gives the machine the disk that its process left.
func (m *machine) buried(p *process) {
	p.disk.mu.Lock()
	defer p.disk.mu.Unlock()
	if p.disk.left != nil {
		m.fs = p.disk.left
	}
}

// stop is a graceful stop.
func (m *machine) stop() {
	p := m.proc
	p.letGo()
	p.cancel()
	_ = p.server.Close()
	<-p.served
	run := <-p.ended
	err := errors.Join(run, p.role.Close())
	if p.dead.Load() {
		err = nil
	}
	m.proc = nil
	m.buried(p)
	if err != nil {
		m.w.violate("%s did not stop in order: %v", m.id, err)
	}
}

// hold is where the storage node waits between reading and storing.
func (p *process) hold(point string, _ topic.Ref) {
	p.mu.Lock()
	var gate chan struct{}
	if p.point == point {
		p.point, gate = "", p.gate
	}
	p.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

// points are those that are held without a lock: whoever waits for a lock keeps fake
// time from passing. The other two are held in the storage node's own tests.
var points = []string{"rebuild", "reserve", "read"}

func (p *process) holdNext(point string) {
	p.letGo()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.point, p.gate = point, make(chan struct{})
}

func (p *process) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate != nil {
		close(p.gate)
	}
	p.point, p.gate = "", nil
}

// slowNode is the node as the sweeper reaches it: time passes on the way.
type slowNode struct {
	nodeapi.Node
	p *process
}

func (n *slowNode) pause(ctx context.Context, what uint64) {
	f := n.p.m.w.cfg.fate(what, uint64(time.Now().UnixMilli()))
	most := uint64(200)
	if f%4 == 0 {
		most = 4000
	}
	pause(ctx, time.Duration(f>>8%most)*time.Millisecond)
}

func (n *slowNode) Inventory(ctx context.Context, req *nodeapi.InventoryRequest) (*nodeapi.InventoryResult, error) {
	n.pause(ctx, 1)
	res, err := n.Node.Inventory(ctx, req)
	n.pause(ctx, 2)
	return res, err
}

func (n *slowNode) Reclaim(ctx context.Context, req *nodeapi.ReclaimRequest) (*nodeapi.ReclaimResult, error) {
	n.pause(ctx, 3)
	if n.p.dead.Load() {
		return nil, errKilled
	}
	return n.Node.Reclaim(ctx, req)
}

// disk is a process's way to its file system. It sees what is removed and renamed,
// and refuses everything once the process is dead.
type disk struct {
	vfs.FS
	p     *process
	under *vfs.Mem

	mu    sync.Mutex // guards below
	armed int        // changes until the process is killed; 0: it is not to be
	rng   *rand.Rand // of that kill; nil: the page cache survives
	left  *vfs.Mem   // what a kill left
}

// arm has the process killed just before its n-th change of the disk from now.
func (d *disk) arm(n int, rng *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.armed, d.rng = n, rng
}

func (d *disk) rule(op vfs.Op) vfs.Fault {
	if op.Kind == vfs.OpStat && strings.Contains(op.Path, ".stale-") {
		// Something is about to be set aside, and waits under the guard for whoever is
		// held: another one that waits for that guard would stop fake time.
		go func() { runtime.Gosched(); d.p.letGo() }()
	}
	if op.Changes() {
		d.mu.Lock()
		if d.armed > 0 {
			if d.armed--; d.armed == 0 {
				d.leaveLocked(d.rng != nil, d.rng)
				d.p.dead.Store(true)
			}
		}
		d.mu.Unlock()
	}
	if d.p.dead.Load() {
		return vfs.Fault{Err: errKilled}
	}
	return vfs.Fault{}
}

func (d *disk) leaveLocked(power bool, rng *rand.Rand) {
	if d.left = d.under.Copy(); !power {
		return
	}
	d.left = d.under.CrashClone(rng)
	// A rename out of staging is one transaction of a file system with a journal. Mem
	// may leave one directory under both names, which no such disk does, and whose end
	// under one name would empty it under the other.
	staging := path.Join(dataDir, "staging")
	list, err := d.left.ReadDir(staging)
	if err != nil {
		return
	}
	for _, e := range list {
		name, _, _ := strings.Cut(e.Name(), "@")
		if id := markerOf(d.left, path.Join(staging, e.Name())); id != 0 && markerOf(d.left, path.Join(topicsDir, name)) == id {
			_ = d.left.RemoveAll(path.Join(staging, e.Name())) // the name: the directory has another one
			_ = d.left.SyncDir(staging)
		}
	}
}

// die keeps what the disk holds now; false when the process is dead already.
func (d *disk) die(power bool, rng *rand.Rand) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left != nil {
		return false
	}
	d.leaveLocked(power, rng)
	return true
}

// topicDirOf is the topic directory that goes when a path goes: the directory itself,
// its marker, or a partition in it.
func topicDirOf(name string) string {
	rest, ok := strings.CutPrefix(path.Clean(name), topicsDir+"/")
	if !ok {
		return ""
	}
	first, more, nested := strings.Cut(rest, "/")
	if nested && strings.Contains(more, "/") {
		return "" // a file of a partition: its log's matter
	}
	return path.Join(topicsDir, first)
}

// check is called before something is removed or loses its name.
func (d *disk) check(what, name string) {
	dir := topicDirOf(name)
	if dir == "" || d.p.dead.Load() {
		return
	}
	if id := markerOf(d.under, dir); id != 0 && d.p.m.w.leader.live(id) {
		d.p.m.w.violate("%s: %s of %s, which is of the live life %s", d.p.m.id, what, name, id)
	}
}

func (d *disk) Remove(name string) error {
	d.check("removal", name)
	return d.FS.Remove(name)
}

func (d *disk) RemoveAll(name string) error {
	d.check("removal", name)
	return d.FS.RemoveAll(name)
}

func (d *disk) Rename(from, to string) error {
	if path.Dir(from) == topicsDir && !strings.Contains(path.Base(from), ".stale-") {
		d.check("rename", from)
	}
	if d.p.m.w.cfg.bug != positionAfterDrop {
		return d.FS.Rename(from, to)
	}
	before := stateFiles(d.under, from)
	err := d.FS.Rename(from, to)
	if err == nil {
		d.p.m.late.renamed(d.under, from, to, before)
	}
	return err
}

// SyncDir makes both sides of a rename durable, as a journal does.
func (d *disk) SyncDir(name string) error {
	if err := d.FS.SyncDir(name); err != nil || name != topicsDir {
		return err
	}
	return d.FS.SyncDir(path.Join(dataDir, "staging"))
}

func (d *disk) OpenRead(name string) (vfs.File, error) {
	if d.p.m.w.cfg.bug == adoptStale {
		d.adopt(name)
	}
	return d.FS.OpenRead(name)
}

// markerOf reads the incarnation of a topic directory; 0: none.
func markerOf(fs vfs.FS, dir string) topic.Incarnation {
	b := readAll(fs, path.Join(dir, "incarnation"))
	if len(b) < 16 {
		return 0
	}
	id, err := topic.ParseID64(string(b[:16]))
	if err != nil {
		return 0
	}
	return id
}

// leftovers lists what lies on a disk of lives that are not live. An empty directory
// under staging is no life's: the next start clears it.
func (m *machine) leftovers() []string {
	var out []string
	for _, dir := range []string{topicsDir, path.Join(dataDir, "staging")} {
		list, err := m.fs.ReadDir(dir)
		if err != nil && !errors.Is(err, io.EOF) {
			return []string{err.Error()}
		}
		for _, e := range list {
			in, err := m.fs.ReadDir(path.Join(dir, e.Name()))
			if err == nil && len(in) == 0 && dir != topicsDir {
				continue
			}
			if id := markerOf(m.fs, path.Join(dir, e.Name())); id == 0 || !m.w.leader.live(id) {
				out = append(out, fmt.Sprintf("%s: %s of %s", m.id, path.Join(dir, e.Name()), id))
			}
		}
	}
	return out
}
