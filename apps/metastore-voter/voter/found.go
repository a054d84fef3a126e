package voter

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/topic"
)

// ErrNotConfirmed: a recovery was described and not made.
var ErrNotConfirmed = errors.New("nothing was done")

// FoundSettings are the flags of the two ways to found a cluster anew. At most one
// of Recover and Restore is given.
type FoundSettings struct {
	Recover string // copy of a member's data directory
	Restore string // backup file
	DryRun  bool   // only say what Recover would do
	Confirm string // what Recover said, as "term/index"
}

// Wanted tells whether the program is to found a cluster, and not to run.
func (s *FoundSettings) Wanted() bool {
	return s.Recover != "" || s.Restore != "" || s.DryRun || s.Confirm != ""
}

// FoundCluster makes the data directory of common that of the only voter of a
// cluster, out of what settings name, and says on out what it did. Errors wrap
// proc.ErrUsage, ErrNotConfirmed, or are those of package member.
func FoundCluster(common proc.Common, s FoundSettings, out io.Writer) error {
	cfg := member.FromCommon(common, topic.RoleVoter)
	switch {
	case s.Recover != "" && s.Restore != "":
		return proc.Usagef("--recover and --restore: a cluster is founded from one of them")
	case s.Recover == "" && (s.DryRun || s.Confirm != ""):
		return proc.Usagef("--dry-run and --confirm go with --recover")
	}
	if _, port, err := net.SplitHostPort(cfg.RaftBind); err != nil || port == "0" {
		return proc.Usagef("--raft-addr %q: the others must find this voter where the new configuration says", cfg.RaftBind)
	}
	if s.Restore != "" {
		return restoreCluster(cfg, s.Restore, out)
	}
	return recoverCluster(cfg, s, out)
}

// report collects what is said and writes it once.
type report struct{ strings.Builder }

func (r *report) line(format string, args ...any) { fmt.Fprintf(r, format+"\n", args...) }

func (r *report) to(out io.Writer) error {
	if _, err := io.WriteString(out, r.String()); err != nil {
		return fmt.Errorf("say what was found: %w", err)
	}
	return nil
}

func recoverCluster(cfg member.Config, s FoundSettings, out io.Writer) error {
	c, err := member.InspectCopy(s.Recover)
	if err != nil {
		return err
	}
	var r report
	r.line("%s is of %s %q of cluster %s.", s.Recover, c.Role, c.NodeID, c.ClusterID)
	r.line("Its log ends with entry %d of term %d; %d topics, %d partitions, %d members.", c.LastIndex, c.LastTerm, c.Counts.Topics, c.Counts.Assignments, c.Counts.Members)
	r.line("Look at every copy that is left, and recover from the one with the highest term, and of these the highest entry:")
	r.line("what only the others have is forgotten.")
	r.line("This configuration is replaced:")
	for _, srv := range c.Servers {
		r.line("  drops %s at %s (%s)", srv.ID, srv.Addr, suffrage(srv.Voter))
	}
	r.line("by the single voter %s, with the data directory %s.", cfg.NodeID, cfg.DataDir)
	confirm := fmt.Sprintf("%d/%d", c.LastTerm, c.LastIndex)
	switch {
	case s.DryRun:
		r.line("Dry run: nothing was done.")
		return r.to(out)
	case s.Confirm == "":
		r.line("Do it on one machine only, and never start the dropped voters with their old disks again: give --confirm %s.", confirm)
		return errors.Join(r.to(out), fmt.Errorf("recover: %w: --confirm is missing", ErrNotConfirmed))
	case s.Confirm != confirm:
		return errors.Join(r.to(out), fmt.Errorf("recover: %w: --confirm is %s, and the copy ends at %s", ErrNotConfirmed, s.Confirm, confirm))
	}
	done, err := member.Recover(cfg, s.Recover)
	if err != nil {
		return err
	}
	r.line("Done: the cluster goes on at entry %d in term %d. %s was not changed.", done.Index, done.Term, s.Recover)
	r.next(cfg)
	return r.to(out)
}

func suffrage(voter bool) string {
	if voter {
		return "voter"
	}
	return "no vote"
}

func (r *report) next(cfg member.Config) {
	r.line("Start %s now, without these flags. Then start further voters with empty data directories and --join;", cfg.NodeID)
	r.line("storage nodes and gateways attach by themselves within half a minute.")
}

func restoreCluster(cfg member.Config, file string, out io.Writer) error {
	done, head, err := member.Restore(cfg, file)
	if err != nil {
		return err
	}
	var r report
	r.line("%s is whole: cluster %s at entry %d, taken at %s by %s.", file, head.ClusterID, head.AppliedIndex, head.TakenAt, head.TakenBy)
	r.line("Done: %d topics, %d partitions and %d members (dead until they register) are in %s; the cluster goes on at entry %d in term %d.",
		done.State.Topics, done.State.Partitions, done.State.Members, cfg.DataDir, done.Index, done.Term)
	r.line("Messages are not in a backup: they are where storage nodes and gateways have them.")
	r.next(cfg)
	return r.to(out)
}
