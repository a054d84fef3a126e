package raftnode

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/backup"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

const foundedMS = 1_795_982_645_123

// copyOf is a copy of a stopped host's directory, as an operator makes one.
func copyOf(t *testing.T, h *host) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(dir, os.DirFS(h.dir)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// lostCluster makes three voters and a follower without a vote, s1, that registers
// and gets a topic. The copy is of the voter "early", which stopped before the
// topics "late0" and on; these have another term. Only s1 is left running.
func lostCluster(t *testing.T) (early string, s1 *host) {
	t.Helper()
	hosts := trio(t)
	apply(t, hosts, &metastate.ClusterID{ID: "lost"})
	s1 = nonvoter(t, "s1", hosts...)
	apply(t, hosts, register(s1))
	last, _ := apply(t, hosts, createTopic("kept", 1, "s1"))
	waitApplied(t, last, append(hosts, s1)...)
	lost := leaderOf(t, hosts...) // its successor has another term
	lost.stop()
	early = copyOf(t, lost)
	var rest []*host
	for _, h := range hosts {
		if h != lost {
			rest = append(rest, h)
		}
	}
	last = fill(t, rest, "late", 100, 5)
	waitApplied(t, last, s1)
	for _, h := range rest {
		h.stop()
	}
	return early, s1
}

// recovered starts the only voter of a founded directory.
func recovered(t *testing.T, found func(Found) (*Founded, error)) (*host, *Founded) {
	t.Helper()
	v := newHost(t, "v9", true)
	v.tune, v.dir = alone, filepath.Join(t.TempDir(), "raft")
	out, err := found(Found{ServerID: ServerID("v9", 77), Addr: v.addr, Dir: v.dir, NowMS: foundedMS})
	if err != nil {
		t.Fatal(err)
	}
	v.start()
	leaderOf(t, v)
	return v, out
}

// TestAMemberThatIsAheadTakesOnTheRecoveredState: the operator recovered from a
// copy that lacks what another member has applied, under terms that the copy has
// never heard of. That member's replica becomes the recovered one as a whole.
func TestAMemberThatIsAheadTakesOnTheRecoveredState(t *testing.T) {
	early, s1 := lostCluster(t)
	st, err := Inspect(early, filepath.Join(t.TempDir(), "scratch"))
	if err != nil {
		t.Fatal(err)
	}
	if st.ClusterID != "lost" || st.LastIndex >= s1.Applied() || len(st.Servers) != 4 || st.Counts.Topics != 1 {
		t.Fatalf("the copy has %+v, s1 applied %d", st, s1.Applied())
	}
	before := listing(t, early)
	v, out := recovered(t, func(f Found) (*Founded, error) { return Recover(early, f) })
	if out.Index <= s1.Applied() || out.Term <= st.LastTerm+1 {
		t.Errorf("founded at %d in term %d", out.Index, out.Term)
	}
	if got := listing(t, early); got != before {
		t.Errorf("the source was changed:\n%s\nwas\n%s", got, before)
	}
	if c := v.Configuration(); len(c.Servers) != 1 || c.Servers[0].ID != "v9" || !c.Servers[0].Voter {
		t.Errorf("the configuration is %+v", c)
	}
	addNonvoter(t, s1, v)
	last, _ := apply(t, []*host{v}, createTopic("after", 2, "s1"))
	waitApplied(t, last, s1)
	if a, b := v.dump(), s1.dump(); a != b {
		t.Errorf("two histories:\n%s\nand\n%s", a, b)
	}
	if _, err := s1.View().Topic("late0"); !errors.Is(err, metastate.ErrNoTopic) {
		t.Errorf("what was forgotten is still shown: %v", err)
	}
	if m := s1.View().Members().ByID["s1"]; m == nil || m.Status != topic.StatusDead || m.BootNonce != 0 {
		t.Errorf("s1 is %+v in its own view", m)
	}
	// It registers as it runs, and leads what it led, ahead of every earlier epoch.
	apply(t, []*host{v}, register(s1))
	poll(t, "s1 leads again", func() bool {
		p, err := s1.View().Assignments("kept")
		return err == nil && p.List[0].Leader == "s1" && p.List[0].LeaderEpoch > foundedMS/1000
	})
	s1.stop()
	s1.start() // from what it has on disk now
	last, _ = apply(t, []*host{v}, createTopic("restarted", 3, "s1"))
	waitApplied(t, last, s1)
}

// listing is every file below a directory with its size and bytes' time.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		b.WriteString(path)
		b.Write(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestRecoverFromAnyMember: a member without a vote has everything that it was
// sent; recovered from, nothing is lost. A second recovery of one copy is ahead of the first.
func TestRecoverFromAnyMember(t *testing.T) {
	_, s1 := lostCluster(t)
	if err := s1.Snapshot(); err != nil {
		t.Fatal(err)
	}
	s1.stop()
	from := copyOf(t, s1)
	v, first := recovered(t, func(f Found) (*Founded, error) { return Recover(from, f) })
	for _, name := range []string{"kept", "late0", "late4"} {
		if _, err := v.View().Topic(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := v.stores.snaps.List(); err != nil || len(list) != 1 || list[0].Index != first.Index {
		t.Errorf("something older is left to fall back to: %v, %v", list, err)
	}
	if v.View().ClusterID() != "lost" {
		t.Errorf("the cluster is %q", v.View().ClusterID())
	}
	if err := v.Snapshot(); err != nil { // nothing in the way of what a node does later
		t.Error(err)
	}
	v.stop()
	v.start()
	leaderOf(t, v)
	again, err := Recover(from, Found{ServerID: "v8", Addr: "127.0.0.1:1", Dir: filepath.Join(t.TempDir(), "again"), NowMS: foundedMS + 60_000})
	if err != nil || again.Index <= v.Applied() || again.Term <= v.Stats().Term || again.Index <= first.Index {
		t.Errorf("a second recovery at %+v after %+v, applied %d: %v", again, first, v.Applied(), err)
	}
}

// TestRecoverFromAMemberThatCrashed: it has no state that may be read, and never
// took a snapshot; everything is in its log, the cluster's id and roles too.
func TestRecoverFromAMemberThatCrashed(t *testing.T) {
	_, s1 := lostCluster(t)
	if err := s1.logs.flush(); err != nil {
		t.Fatal(err)
	}
	want := s1.dump()
	crash(t, s1)
	st, err := Inspect(s1.dir, filepath.Join(t.TempDir(), "scratch"))
	if err != nil || st.ClusterID != "lost" || st.LastIndex == 0 {
		t.Fatalf("it has %+v, %v", st, err)
	}
	as := Found{ServerID: ServerID("s1", 77), Addr: "127.0.0.1:1", Dir: filepath.Join(t.TempDir(), "s1"), NowMS: foundedMS}
	if _, err := Recover(s1.dir, as); !errors.Is(err, ErrNotAVoter) {
		t.Errorf("a storage node founds the cluster: %v", err)
	}
	v, _ := recovered(t, func(f Found) (*Founded, error) { return Recover(s1.dir, f) })
	for _, name := range []string{"kept", "late0", "late4"} {
		if _, err := v.View().Topic(name); err != nil {
			t.Errorf("%s: %v, it had\n%s", name, err, want)
		}
	}
	if v.View().ClusterID() != "lost" {
		t.Errorf("the cluster is %q", v.View().ClusterID())
	}
}

// TestUncommittedEntriesOfARecoveredLogTakeEffect: a survivor cannot know what the
// lost majority had acknowledged, so everything that it has counts.
func TestUncommittedEntriesOfARecoveredLogTakeEffect(t *testing.T) {
	h := single(t)
	apply(t, []*host{h}, &metastate.ClusterID{ID: "c"})
	last := fill(t, []*host{h}, "t", 1, 3)
	term := h.Stats().Term
	h.stop()
	raw, err := metastate.Encode(createTopic("tail", 9, "s1"))
	if err != nil {
		t.Fatal(err)
	}
	logs, err := openLogStore(filepath.Join(h.dir, logFile), &room{}, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	end, err := logs.LastIndex()
	if err != nil || end < last {
		t.Fatal(end, err)
	}
	if err := errors.Join(logs.StoreLog(&raft.Log{Index: end + 1, Term: term, Type: raft.LogCommand, Data: raw}), logs.Close()); err != nil {
		t.Fatal(err)
	}
	v, _ := recovered(t, func(f Found) (*Founded, error) { return Recover(h.dir, f) })
	if _, err := v.View().Topic("tail"); err != nil {
		t.Error(err)
	}
}

// TestRestoreABackup: the state comes back; whoever still has the lost cluster's
// log attaches and takes it on, although it is older than what it had applied.
func TestRestoreABackup(t *testing.T) {
	hosts := trio(t)
	apply(t, hosts, &metastate.ClusterID{ID: "lost"})
	s1 := nonvoter(t, "s1", hosts...)
	apply(t, hosts, register(s1))
	last, _ := apply(t, hosts, createTopic("kept", 1, "s1"))
	waitApplied(t, last, s1)
	poll(t, "s1 has caught up", func() bool { ok, _ := s1.CaughtUp(); return ok })
	file, head := backupOf(t, s1)
	if head.ClusterID != "lost" || head.AppliedIndex < last || head.TakenBy != "s1" || head.Counts.Topics != 1 || head.TakenAt != "2026-11-29T20:04:05Z" {
		t.Errorf("header %+v", head)
	}
	waitApplied(t, fill(t, hosts, "late", 100, 20), s1)
	for _, h := range hosts {
		h.stop()
	}
	v, out := recovered(t, func(f Found) (*Founded, error) { return restore(file, f) })
	if out.State != (metastate.Refounded{Members: 1, Topics: 1, Partitions: 1}) || out.Index <= s1.Applied() {
		t.Errorf("restored %+v", out)
	}
	addNonvoter(t, s1, v)
	last, _ = apply(t, []*host{v}, register(s1))
	waitApplied(t, last, s1)
	if a, b := v.dump(), s1.dump(); a != b || strings.Contains(a, "late") || !strings.Contains(a, "kept") {
		t.Errorf("two histories:\n%s\nand\n%s", a, b)
	}
}

func restore(file []byte, f Found) (*Founded, error) {
	r, err := backup.NewReader(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	return Restore(r, f)
}

func backupOf(t *testing.T, h *host) ([]byte, backup.Header) {
	t.Helper()
	var b *Backup
	var err error
	poll(t, h.id+" has caught up and opens a backup", func() bool {
		b, err = h.Backup(t.Context(), "test", time.UnixMilli(foundedMS))
		return !errors.Is(err, ErrNotCaughtUp)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	raw, err := io.ReadAll(b)
	if err != nil || int64(len(raw)) != b.Size {
		t.Fatalf("%d of %d bytes, %v", len(raw), b.Size, err)
	}
	return raw, b.Header
}

// TestRestoreRefuses: what is not whole, or not what its header says, leaves
// nothing that a node could start from.
func TestRestoreRefuses(t *testing.T) {
	h := single(t)
	apply(t, []*host{h}, &metastate.ClusterID{ID: "c"})
	apply(t, []*host{h}, registerAs("s1", topic.RoleStorage, 1))
	fill(t, []*host{h}, "t", 1, 3)
	poll(t, "caught up", func() bool { ok, _ := h.CaughtUp(); return ok })
	file, head := backupOf(t, h)
	reader, err := backup.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	state, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	fewer := head
	fewer.Counts.Topics++
	var other bytes.Buffer
	if err := backup.Write(&other, &fewer, bytes.NewBuffer(state)); err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(file)
	flipped[len(flipped)/2] ^= 1
	for name, c := range map[string]struct {
		file []byte
		want error
	}{
		"cut":               {file[:len(file)-1], backup.ErrDamaged},
		"cut in the state":  {file[:len(file)/2], backup.ErrDamaged},
		"a bit flipped":     {flipped, backup.ErrDamaged},
		"a record is amiss": {other.Bytes(), ErrDamagedState},
	} {
		dir := filepath.Join(t.TempDir(), "raft")
		if _, err := restore(c.file, Found{ServerID: "v9", Addr: "127.0.0.1:1", Dir: dir, NowMS: 1}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
			t.Errorf("%s: it left %v, %v", name, list, err)
		}
	}
	if _, err := restore(file, Found{ServerID: "v9", Addr: "127.0.0.1:1", Dir: h.dir, NowMS: 1}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a directory that is in use: %v", err)
	}
	h.stop()
	if _, err := Recover(copyOf(t, h), Found{ServerID: "s1", Addr: "127.0.0.1:1", Dir: filepath.Join(t.TempDir(), "raft"), NowMS: 1}); !errors.Is(err, ErrNotAVoter) {
		t.Errorf("as a storage node: %v", err)
	}
	if _, err := restore(file, Found{ServerID: "s1", Addr: "127.0.0.1:1", Dir: filepath.Join(t.TempDir(), "raft"), NowMS: 1}); !errors.Is(err, ErrNotAVoter) {
		t.Errorf("a backup as a storage node: %v", err)
	}
	if _, err := Recover(t.TempDir(), Found{ServerID: "v9", Addr: "127.0.0.1:1", Dir: filepath.Join(t.TempDir(), "raft"), NowMS: 1}); !errors.Is(err, ErrNothingToRecover) {
		t.Errorf("from an empty directory: %v", err)
	}
}

// TestBackupsAreBounded: two at once, and one that is given up makes room again.
func TestBackupsAreBounded(t *testing.T) {
	h := single(t)
	apply(t, []*host{h}, &metastate.ClusterID{ID: "c"})
	poll(t, "caught up", func() bool { ok, _ := h.CaughtUp(); return ok })
	ctx, cancel := context.WithCancel(t.Context())
	first, err := h.Backup(ctx, "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	second, err := h.Backup(t.Context(), "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Backup(t.Context(), "test", time.Now()); !errors.Is(err, ErrBusy) {
		t.Errorf("a third: %v", err)
	}
	cancel()
	// It gives up although nobody reads; who read at once might still have it whole.
	poll(t, "the first has ended", func() bool { return h.backups.Load() == 1 })
	if _, err := io.ReadAll(first); !errors.Is(err, context.Canceled) {
		t.Errorf("the first goes on: %v", err)
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
	poll(t, "there is room again", func() bool {
		b, err := h.Backup(t.Context(), "test", time.Now())
		return err == nil && b.Close() == nil
	})
	poll(t, "and again", func() bool { first, err = h.Backup(t.Context(), "test", time.Now()); return err == nil })
	h.stop() // a client that reads nothing does not keep a node from stopping
	if _, err := io.ReadAll(first); !errors.Is(err, ErrClosed) {
		t.Errorf("the stream of a closed node: %v", err)
	}
}

// TestWhatTookEffectIsNeverCut: a leader whose log lacks what this replica has
// applied ends this node, and leaves its log as it was.
func TestWhatTookEffectIsNeverCut(t *testing.T) {
	var failed error
	logs, err := openLogStore(filepath.Join(t.TempDir(), logFile), &room{}, func(err error) { failed = err })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = logs.Close() }()
	for i := range 6 {
		if err := logs.StoreLog(&raft.Log{Index: uint64(i + 1), Term: 1, Type: raft.LogNoop}); err != nil {
			t.Fatal(err)
		}
	}
	logs.applied = func() (uint64, error) { return 4, nil }
	if err := logs.DeleteRange(1, 2); err != nil {
		t.Errorf("what a snapshot has: %v", err)
	}
	if err := logs.DeleteRange(6, 6); err != nil {
		t.Errorf("what took no effect: %v", err)
	}
	if err := logs.DeleteRange(4, 5); !errors.Is(err, ErrDiverged) || !errors.Is(failed, ErrDiverged) {
		t.Errorf("what took effect: %v, the node: %v", err, failed)
	}
	if last, err := logs.LastIndex(); err != nil || last != 5 {
		t.Errorf("the log ends at %d, %v", last, err)
	}
}

// TestAheadIndex: see TestAhead in package metastate.
func TestAheadIndex(t *testing.T) {
	for _, c := range []struct {
		last  uint64
		nowMS int64
		want  uint64
	}{
		{1088, 0, 1088 + 1<<32},
		{1088, foundedMS, foundedMS / 1000 << 20},
		{foundedMS/1000<<20 + 5, foundedMS, foundedMS/1000<<20 + 5 + 1<<32},
	} {
		if got := aheadIndex(c.last, c.nowMS); got != c.want || got >= 1<<53 {
			t.Errorf("aheadIndex(%d, %d) = %d, want %d", c.last, c.nowMS, got, c.want)
		}
	}
}
