package proc

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Group is a set of actors that live and die together. They start in the order
// of Add; when the context ends or one returns, all are stopped in the reverse
// order, each waited for before the next. The zero value is ready to use.
type Group struct {
	actors []actor
}

type actor struct {
	name string
	run  func(context.Context) error
}

// Add adds an actor. run must return soon after its context ends.
func (g *Group) Add(name string, run func(context.Context) error) {
	g.actors = append(g.actors, actor{name, run})
}

type running struct {
	actor
	cancel context.CancelFunc
	done   chan error
}

// Run starts the actors and returns after all have ended: nil when ctx ended
// first and every actor stopped cleanly, else the first error, with the name of
// its actor. An actor that returns before it was told to is an error.
func (g *Group) Run(ctx context.Context, log *slog.Logger) error {
	started := make([]running, 0, len(g.actors))
	ended := make(chan int, len(g.actors))
	for i, a := range g.actors {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		r := running{a, cancel, make(chan error, 1)}
		started = append(started, r)
		go func() {
			r.done <- r.run(own)
			ended <- i
		}()
	}
	first := -1
	select {
	case <-ctx.Done():
	case first = <-ended:
	}
	var cause error
	for i := len(started) - 1; i >= 0; i-- {
		r := started[i]
		begin := time.Now()
		r.cancel()
		err := <-r.done
		if i == first {
			log.Error("actor ended by itself", "actor", r.name, "err", err)
			cause = fmt.Errorf("%s ended: %w", r.name, orUnexpected(err))
			continue
		}
		log.Debug("actor stopped", "actor", r.name, "took", time.Since(begin), "err", err)
		if err != nil && cause == nil {
			cause = fmt.Errorf("stop %s: %w", r.name, err)
		}
	}
	return cause
}

// errUnexpected stands in for the nil of an actor that ended on its own.
type errUnexpected struct{}

func (errUnexpected) Error() string { return "it returned without being told to" }

func orUnexpected(err error) error {
	if err == nil {
		return errUnexpected{}
	}
	return err
}
