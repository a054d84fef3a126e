package dev

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"slices"
	"time"
)

const (
	// voteLimit bounds the wait for votes once every node is ready. A voter that starts
	// so late that the others have formed the cluster without it has to join like one
	// that lost its disk: it is promoted when the leader has led for 12 s, which a
	// machine with much to do makes longer. Its vote comes later all the same.
	voteLimit = time.Minute
	// allVoteLine is in the metrics of the leading voter while nobody waits for a vote.
	allVoteLine = "narad_raft_voters_pending 0"
	// maxMetrics bounds what is read of them: a node has some tens of KiB.
	maxMetrics = 4 << 20
)

// allVote tells whether the leading voter says that nobody who may vote waits for it.
func (c *Cluster) allVote(ctx context.Context, client *http.Client) bool {
	return slices.ContainsFunc(c.nodes, func(p *process) bool {
		return p.role == Voter && probe(ctx, client, "http://"+p.ops+"/metrics", saysAllVote)
	})
}

func saysAllVote(body io.Reader) bool {
	lines := bufio.NewScanner(io.LimitReader(body, maxMetrics))
	for lines.Scan() {
		if lines.Text() == allVoteLine {
			return true
		}
	}
	return false
}

func isReady(ctx context.Context, client *http.Client, ops string) bool {
	return probe(ctx, client, "http://"+ops+"/readyz", func(io.Reader) bool { return true })
}

// probe tells whether a node answers 200 with a body that is as it should be.
func probe(ctx context.Context, client *http.Client, url string, good func(io.Reader) bool) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	ok := resp.StatusCode == http.StatusOK && good(resp.Body)
	return resp.Body.Close() == nil && ok
}
