package bus

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestBytesOfPayloads: golden, and read back.
func TestBytesOfPayloads(t *testing.T) {
	at := time.Date(2026, 11, 29, 21, 4, 5, 123_456_789, time.FixedZone("", 3600))
	yes := true
	for _, c := range []struct {
		kind    kind
		payload any
		want    string
		event   event
	}{
		{
			topicPurged,
			purged{envelope: seal(0xab, "gateway-1", at), Topic: "orders", Incarnation: 0x3f9a17c4e2b08d51},
			`{"v":1,"id":"00000000000000ab","from":"gateway-1","sent_at":"2026-11-29T20:04:05.123Z","topic":"orders","incarnation":"3f9a17c4e2b08d51"}`,
			event{kind: topicPurged, topic: "orders", incarnation: 0x3f9a17c4e2b08d51},
		},
		{
			memberDraining,
			draining{envelope: seal(1<<63, "voter-2", at), Member: "storage-3", Draining: &yes},
			`{"v":1,"id":"8000000000000000","from":"voter-2","sent_at":"2026-11-29T20:04:05.123Z","member":"storage-3","draining":true}`,
			event{kind: memberDraining, member: "storage-3", draining: true},
		},
	} {
		got, err := encode(c.payload)
		if err != nil || string(got) != c.want {
			t.Errorf("got  %s, %v\nwant %s", got, err, c.want)
		}
		if e, ok := judge(c.kind, got); !ok || e != c.event {
			t.Errorf("%s is read as %+v, %t", got, e, ok)
		}
	}
	if got := topicPurged.subject("7f3a"); got != "narad.7f3a.v1.topic_purged" {
		t.Error(got)
	}
	if got := memberDraining.subject("7f3a"); got != "narad.7f3a.v1.member_draining" {
		t.Error(got)
	}
}

const (
	goodPurge = `{"v":1,"id":"00000000000000ab","from":"g","sent_at":"x","topic":"orders","incarnation":"3f9a17c4e2b08d51"}`
	goodDrain = `{"v":1,"id":"00000000000000ab","from":"v","sent_at":"x","member":"storage-3","draining":false}`
)

// TestJudge: what is dropped and what is not.
func TestJudge(t *testing.T) {
	with := func(good, old, now string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%s has no %s", good, old)
		}
		return strings.Replace(good, old, now, 1)
	}
	padded := func(n int) string {
		return with(goodPurge, `"v":1`, `"v":1,"pad":"`+strings.Repeat("x", n-len(goodPurge)-len(`,"pad":""`))+`"`)
	}
	for name, c := range map[string]struct {
		kind    kind
		payload string
		pass    bool
	}{
		"good purge":              {topicPurged, goodPurge, true},
		"good drain":              {memberDraining, goodDrain, true},
		"unknown fields":          {topicPurged, with(goodPurge, `"v":1`, `"v":1,"new":{"a":[1]}`), true},
		"as large as it may be":   {topicPurged, padded(MaxPayload), true},
		"one byte more":           {topicPurged, padded(MaxPayload + 1), false},
		"empty":                   {topicPurged, "", false},
		"no JSON":                 {topicPurged, "\x00\xff purge everything", false},
		"more behind it":          {topicPurged, goodPurge + "{}", false},
		"a list":                  {topicPurged, "[" + goodPurge + "]", false},
		"null":                    {topicPurged, "null", false},
		"version 2":               {topicPurged, with(goodPurge, `"v":1`, `"v":2`), false},
		"version as text":         {topicPurged, with(goodPurge, `"v":1`, `"v":"1"`), false},
		"no version":              {topicPurged, with(goodPurge, `"v":1,`, ``), false},
		"id zero":                 {topicPurged, with(goodPurge, "3f9a17c4e2b08d51", "0000000000000000"), false},
		"no incarnation":          {topicPurged, with(goodPurge, `,"incarnation":"3f9a17c4e2b08d51"`, ``), false},
		"capitals in the id":      {topicPurged, with(goodPurge, "3f9a17c4e2b08d51", "3F9A17C4E2B08D51"), false},
		"a path for a name":       {topicPurged, with(goodPurge, "orders", "../orders"), false},
		"a directory of ours":     {topicPurged, with(goodPurge, "orders", "orders.stale-3f9a17c4e2b08d51"), false},
		"no name":                 {topicPurged, with(goodPurge, "orders", ""), false},
		"a drain for a purge":     {topicPurged, goodDrain, false},
		"a purge for a drain":     {memberDraining, goodPurge, false},
		"draining is not said":    {memberDraining, with(goodDrain, `,"draining":false`, ``), false},
		"no member":               {memberDraining, with(goodDrain, "storage-3", ""), false},
		"a member too long":       {memberDraining, with(goodDrain, "storage-3", strings.Repeat("s", maxMemberID+1)), false},
		"of a kind that is not":   {"topic_made", goodPurge, false},
		"nested as deep as it is": {topicPurged, with(goodPurge, `"v":1`, `"v":1,"a":`+strings.Repeat("[", 1900)+strings.Repeat("]", 1900)), true},
	} {
		if _, ok := judge(c.kind, []byte(c.payload)); ok != c.pass {
			t.Errorf("%s: passes %t, want %t", name, ok, c.pass)
		}
	}
}

func FuzzJudge(f *testing.F) {
	f.Add([]byte(goodPurge))
	f.Add([]byte(goodDrain))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if e, ok := judge(topicPurged, payload); ok && (topic.ValidateName(e.topic) != nil || e.incarnation == 0 || len(payload) > MaxPayload) {
			t.Errorf("%q passes as %+v", payload, e)
		}
		if e, ok := judge(memberDraining, payload); ok && (e.member == "" || len(e.member) > maxMemberID) {
			t.Errorf("%q passes as %+v", payload, e)
		}
	})
}

// TestSettings: no refusal repeats a password.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	const secret = "hunter2"
	for name, c := range map[string]struct {
		set  Settings
		want string // in the refusal; "": it is taken
	}{
		"off":                  {Settings{}, ""},
		"one":                  {Settings{URL: "nats://127.0.0.1:4222"}, ""},
		"several, without TLS": {Settings{URL: "nats://a:4222, tls://[::1]:4222"}, ""},
		"creds":                {Settings{URL: "tls://a", CredsFile: file}, ""},
		"user and password":    {Settings{URL: "nats://bob:" + secret + "@a:4222"}, "--nats-creds-file"},
		"in the second":        {Settings{URL: "nats://a:4222,nats://" + secret + "@b:4222"}, "--nats-creds-file"},
		"what is not a URL":    {Settings{URL: "nats://bob:" + secret + " %%@a"}, "--nats-url"},
		"password as a query":  {Settings{URL: "nats://a:4222?pass=" + secret}, "--nats-url"},
		"password as a path":   {Settings{URL: "nats://a:4222/" + secret}, "--nats-url"},
		"no scheme":            {Settings{URL: "localhost:4222"}, "nats://host:port"},
		"another scheme":       {Settings{URL: "http://localhost:4222"}, "nats://host:port"},
		"no host":              {Settings{URL: "nats://:4222"}, "nats://host:port"},
		"an empty one":         {Settings{URL: "nats://a:4222,"}, "nats://host:port"},
		"too many":             {Settings{URL: strings.Repeat("nats://a:1,", maxServers) + "nats://a:1"}, "at most 16"},
		"creds without a bus":  {Settings{CredsFile: file}, "--nats-url"},
		"CA without a bus":     {Settings{CAFile: file}, "--nats-url"},
		"no creds file":        {Settings{URL: "nats://a:4222", CredsFile: filepath.Join(dir, "none")}, "--nats-creds-file"},
		"no CA file":           {Settings{URL: "nats://a:4222", CAFile: filepath.Join(dir, "none")}, "--nats-tls-ca"},
		"a CA file of garbage": {Settings{URL: "nats://a:4222", CAFile: file}, "no certificate"},
	} {
		err := c.set.Check()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: refused: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		case err != nil && strings.Contains(err.Error(), secret):
			t.Errorf("%s: the refusal tells the password: %v", name, err)
		}
	}
}

// replica knows its cluster when it is told.
type replica struct {
	id      string
	changed chan struct{}
}

func (r *replica) ClusterID() string        { return r.id }
func (r *replica) Changed() <-chan struct{} { return r.changed }

// nowhere is a bus whose server never answers.
func nowhere(t *testing.T, registry prometheus.Registerer, cfg Config) *Bus {
	t.Helper()
	cfg.Settings, cfg.Registry = Settings{URL: "nats://127.0.0.1:1"}, registry
	if cfg.Replica == nil {
		cfg.Replica = &replica{changed: make(chan struct{})}
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func counted(b *Bus, k kind, outcome string) int {
	return int(testutil.ToFloat64(b.metrics.messages.WithLabelValues(string(k), outcome)))
}

// TestPublishingNeverWaits: with nobody who takes them, what fits is kept and the
// rest is dropped and counted.
func TestPublishingNeverWaits(t *testing.T) {
	b := nowhere(t, nil, Config{NodeID: "gateway-1"})
	for range outQueue + 7 {
		b.TopicPurged("orders", 9)
	}
	b.MemberDraining("storage-1", true)
	b.TopicPurged(strings.Repeat("x", MaxPayload), 9) // no such topic can be
	if got := counted(b, topicPurged, outcomeFailed); got != 8 {
		t.Errorf("%d purges failed", got)
	}
	if got := counted(b, memberDraining, outcomeFailed); got != 1 || len(b.out) != outQueue {
		t.Errorf("%d drains failed, %d messages wait", got, len(b.out))
	}
}

// TestASlowListenerCostsMessagesOnly: what is taken never waits either, the newest
// is kept, and each message is counted once.
func TestASlowListenerCostsMessagesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []topic.Incarnation
		release := make(chan struct{})
		b := nowhere(t, nil, Config{TopicPurged: func(_ string, id topic.Incarnation) {
			<-release
			heard = append(heard, id)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		const n = 2 * inQueue
		for i := range n {
			b.take(topicPurged, fmt.Appendf(nil, `{"v":1,"topic":"orders","incarnation":"%016x"}`, i+1))
		}
		b.take(topicPurged, []byte("garbage"))
		close(release)
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		received, ignored := counted(b, topicPurged, outcomeReceived), counted(b, topicPurged, outcomeIgnored)
		if len(heard) < inQueue || len(heard) > inQueue+1 || heard[len(heard)-1] != n {
			t.Errorf("%d heard, the last %v", len(heard), heard[len(heard)-1])
		}
		if received != len(heard) || received+ignored != n+1 {
			t.Errorf("%d heard, counted %d received and %d ignored of %d", len(heard), received, ignored, n+1)
		}
	})
}

// TestOffAndAlone: without a server, a cluster or even a bus nothing ends and
// nothing is said twice.
func TestOffAndAlone(t *testing.T) {
	registry := prometheus.NewRegistry()
	off, err := New(Config{Registry: registry})
	if err != nil || off != nil {
		t.Fatalf("%v, %v", off, err)
	}
	off.TopicPurged("orders", 1)
	off.MemberDraining("storage-1", true)
	var log testkit.Journal
	known := &replica{id: "7f3a", changed: make(chan struct{})}
	for name, b := range map[string]*Bus{
		"off": off, "without a cluster": nowhere(t, nil, Config{}),
		"without a server": nowhere(t, registry, Config{Replica: known, Log: log.Logger()}),
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		if name == "without a server" {
			testkit.Poll(t, testkit.Patience, "the first try has failed", func() bool { return log.String() != "" })
		}
		over := time.After(1200 * time.Millisecond) // a few tries
		select {
		case err := <-ended:
			t.Errorf("%s: it ended by itself: %v", name, err)
		case <-over:
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		cancel()
	}
	if got := strings.Count(log.String(), "\n"); got != 1 || !strings.Contains(log.String(), "the bus is not reached") {
		t.Errorf("%d lines of log: %s", got, log.String())
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
