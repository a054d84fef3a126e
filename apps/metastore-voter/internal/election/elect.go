package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// contest is one election of one partition.
type contest struct {
	a         topic.Assignment // as read; after the first entry with the new epoch
	wanted    string           // node to prefer among equals; "": none
	avoided   string           // node that is not asked, and so not elected; "": none
	answers   []answer
	elected   topic.Replica
	positions [][]byte // that the elected one begins with, in union
	finished  bool
	damaged   bool // a majority promised, and nobody of it may lead
	chain     int  // of those of one number none is elected unless all are reached; 0: alone
	holds     bool // its leader holds, the wanted replica has everything
	behind    bool // its leader says that the wanted replica has not
}

// answer is the promise of one replica.
type answer struct {
	replica topic.Replica
	Promise
}

// elect runs elections of partitions, all together: two entries, one call to
// each node in between. It answers how many partitions have a leader now.
func (r *Runner) elect(ctx context.Context, list []*contest, reason string) int {
	done := 0
	for part := range slices.Chunk(list, maxTogether) {
		done += r.electPart(ctx, part, reason)
	}
	return done
}

func (r *Runner) electPart(ctx context.Context, list []*contest, reason string) int {
	began := r.cfg.Mono()
	open, err := r.begin(ctx, list)
	if err == nil {
		r.fence(ctx, open)
		open = slices.DeleteFunc(open, func(c *contest) bool { return !r.chosen(c) })
		open = r.prime(ctx, open)
		err = r.install(ctx, open)
	}
	if err != nil {
		r.cfg.Log.Debug("an election was not finished", "partitions", len(list), "err", err)
	}
	done := 0
	for _, c := range list {
		if c.finished {
			done++
			r.cfg.Log.Info("partition leader elected", "partition", c.a.Ref.String(), "leader", c.elected.Node,
				"leader_epoch", c.a.LeaderEpoch, "reason", reason, "took", r.cfg.Mono()-began)
		}
	}
	r.metrics.elections.WithLabelValues(reason, "elected").Add(float64(done))
	damaged := 0
	for _, c := range list {
		if c.damaged {
			damaged++
		}
	}
	r.metrics.elections.WithLabelValues(reason, "damaged").Add(float64(damaged))
	r.metrics.elections.WithLabelValues(reason, "none").Add(float64(len(list) - done - damaged))
	return done
}

// chosen chooses, and says once per epoch what an operator has to know: that what may
// be committed is whole on no copy that has answered.
func (r *Runner) chosen(c *contest) bool {
	err := c.choose()
	c.damaged = errors.Is(err, quorum.ErrOnlyDamaged)
	if c.damaged && r.told[c.a.Ref] != c.a.LeaderEpoch {
		if len(r.told) >= maxEarlyKept {
			clear(r.told)
		}
		r.told[c.a.Ref] = c.a.LeaderEpoch
		var nodes []string
		for i := range c.answers {
			if c.answers[i].Damaged {
				nodes = append(nodes, c.answers[i].replica.Node)
			}
		}
		r.cfg.Log.Error("a partition has no leader: only a damaged copy is known to have everything committed; another copy has to answer",
			"partition", c.a.Ref.String(), "damaged_on", strings.Join(nodes, ", "), "promised", len(c.answers), "replicas", len(c.a.Replicas))
	}
	return err == nil
}

// begin takes the partitions from their leaders. One that has no leader already
// keeps its epoch: nobody can have led under it, and promises of it hold.
func (r *Runner) begin(ctx context.Context, list []*contest) ([]*contest, error) {
	e := &metastate.BeginElections{}
	var led, open []*contest
	for _, c := range list {
		if c.a.Leader == "" {
			open = append(open, c)
			continue
		}
		led = append(led, c)
		e.Items = append(e.Items, metastate.ElectionStart{Ref: c.a.Ref, Epoch: c.a.LeaderEpoch, ConfigVersion: c.a.ConfigVersion})
	}
	if len(led) == 0 {
		return open, nil
	}
	res, err := r.cfg.Propose(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("end the leadership of %d partitions: %w", len(led), err)
	}
	for i, c := range led {
		if res.Done[i] {
			c.a.Leader = ""
			c.a.LeaderEpoch++
			open = append(open, c)
		}
	}
	return open, nil
}

// fence asks every usable replica of every contest, a call per node, and waits
// until all have answered, or grace after each contest has its majority.
func (r *Runner) fence(ctx context.Context, open []*contest) {
	m := members(r.cfg.View.Members().ByID)
	byNode := map[string][]*contest{}
	for _, c := range open {
		for _, rep := range c.a.Replicas {
			if m.usable(rep) && rep.CopyID != 0 && rep.Node != c.avoided {
				byNode[rep.Node] = append(byNode[rep.Node], c)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.timing.Call)
	defer cancel()
	var mu sync.Mutex // guards answers of the contests and majorities
	majorities := make(chan struct{}, 1)
	var calls sync.WaitGroup
	for node, contests := range byNode {
		calls.Go(func() {
			items := make([]Fence, 0, len(contests))
			for _, c := range contests {
				rep, _ := c.a.ReplicaOn(node)
				items = append(items, Fence{Ref: c.a.Ref, Replica: rep, Epoch: c.a.LeaderEpoch})
			}
			got, err := r.cfg.Nodes.Fence(ctx, node, items)
			if err != nil || len(got) != len(items) {
				r.cfg.Log.Debug("a replica's node did not answer a fence", "node", node, "partitions", len(items), "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i, c := range contests {
				if got[i].OK {
					c.answers = append(c.answers, answer{replica: items[i].Replica, Promise: got[i]})
				}
			}
			if !slices.ContainsFunc(open, func(c *contest) bool { return !c.majority() }) {
				select {
				case majorities <- struct{}{}:
				default:
				}
			}
		})
	}
	all := make(chan struct{})
	go func() { calls.Wait(); close(all) }()
	select {
	case <-all:
		return
	case <-majorities:
	}
	grace := time.NewTimer(r.timing.Grace)
	defer grace.Stop()
	select {
	case <-all:
	case <-grace.C:
		cancel() // who is slower than the majority is not waited for
		<-all
	}
}

// majority tells whether enough replicas of the set have promised to choose one.
func (c *contest) majority() bool {
	_, err := c.vote()
	return err == nil
}

// prime hands the chosen ones what a majority knows of positions. Who does not
// answer is not made leader: it would not answer anybody else either.
func (r *Runner) prime(ctx context.Context, open []*contest) []*contest {
	byNode := map[string][]*contest{}
	for _, c := range open {
		byNode[c.elected.Node] = append(byNode[c.elected.Node], c)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timing.Call)
	defer cancel()
	var mu sync.Mutex // guards ready
	var ready []*contest
	var calls sync.WaitGroup
	for node, contests := range byNode {
		calls.Go(func() {
			items := make([]Prime, 0, len(contests))
			for _, c := range contests {
				items = append(items, Prime{Ref: c.a.Ref, Epoch: c.a.LeaderEpoch, Positions: c.positions})
			}
			if err := r.cfg.Nodes.Prime(ctx, node, items); err != nil {
				r.cfg.Log.Debug("the chosen leader did not answer", "node", node, "partitions", len(items), "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ready = append(ready, contests...)
		})
	}
	calls.Wait()
	return ready
}

// install makes the chosen ones leaders.
func (r *Runner) install(ctx context.Context, open []*contest) error {
	if len(open) == 0 {
		return nil
	}
	e := &metastate.ElectLeaders{}
	for _, c := range open {
		e.Items = append(e.Items, metastate.Elected{Ref: c.a.Ref, Epoch: c.a.LeaderEpoch, ConfigVersion: c.a.ConfigVersion, Leader: c.elected})
	}
	res, err := r.cfg.Propose(ctx, e)
	if err != nil {
		return fmt.Errorf("install leaders of %d partitions: %w", len(open), err)
	}
	for i, c := range open {
		c.finished = res.Done[i]
	}
	return nil
}
