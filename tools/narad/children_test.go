package main

import (
	"strings"
	"testing"
)

func TestChildrenCommand(t *testing.T) {
	b, url := newBroker(t)
	sh := newShell(t, url)
	contains(t, sh.must("", "children", "ls", "events"), "CHILD", "later", "5s", "12", "90ms", "2, others do not answer")
	contains(t, sh.must("", "children", "add", "events", "later", "--delay", "5s"), "copied to later, 5s after its commit")
	contains(t, sh.must("", "children", "rm", "events", "later"), "later gets no copies of events any more")
	contains(t, strings.Join(b.calls, "\n"), "POST /v1/topics/events/children", "DELETE /v1/topics/events/children/later")
	if out := sh.must("", "children", "ls", "events", "--json"); strings.Count(out, "\n") != 1 {
		t.Errorf("as JSON: %q", out)
	}
	for _, args := range [][]string{{"add", "events"}, {"add", "events", "c", "--delay", "soon"}, {"ls"}, {"rm", "events"}} {
		if _, _, exit := sh.run("", append([]string{"children"}, args...)...); exit != 2 {
			t.Errorf("%v: exit %d", args, exit)
		}
	}
	if _, _, exit := sh.run("", "topic", "add", "x", "--delay", "5s"); exit != 2 {
		t.Errorf("a delay without a parent: exit %d", exit)
	}
}
