package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Info is what a gateway says of itself without credentials.
type Info struct {
	API       string   `json:"api"`
	Release   string   `json:"release"`
	ClusterID string   `json:"cluster_id"`
	NodeID    string   `json:"node_id"`
	Limits    Limits   `json:"limits"`
	Features  []string `json:"features"`
}

// Limits of a gateway that a client should keep.
type Limits struct {
	MaxMessageBytes  int64 `json:"max_message_bytes"`
	MaxBatchMessages int   `json:"max_batch_messages"`
	MaxBatchBytes    int64 `json:"max_batch_bytes"`
	MaxWaitMS        int64 `json:"max_wait_ms"`
}

// Members is the member list as one gateway's replica has it.
type Members struct {
	ClusterID  string      `json:"cluster_id"`
	AnsweredBy string      `json:"answered_by"`
	LeaderID   *string     `json:"leader_id"`
	AsOf       *time.Time  `json:"as_of"`
	Stale      bool        `json:"stale"` // no leader's measurement: heartbeat ages are nil
	Members    []Member    `json:"members"`
	Tombstones []Tombstone `json:"tombstones"`
}

// Member is a process that has registered with the metastore.
type Member struct {
	ID                string  `json:"id"`
	Role              string  `json:"role"`
	Status            string  `json:"status"`
	Draining          bool    `json:"draining"`
	Voter             bool    `json:"voter"`
	Leader            bool    `json:"leader"`
	Address           string  `json:"address"`
	Zone              *string `json:"zone"`
	Release           string  `json:"release"`
	HeartbeatAgeMS    *int64  `json:"heartbeat_age_ms"`
	PartitionsLed     *int    `json:"partitions_led"`
	Replicas          *int    `json:"replicas"`
	WALBacklogRecords *uint64 `json:"wal_backlog_records"`
	DiskUsedPercent   *int    `json:"disk_used_percent"`
	// Decommission is set by Client.Member for one that drains, and nil in lists.
	Decommission *Decommission `json:"decommission"`
}

// Tombstone is a member that was removed for good.
type Tombstone struct {
	ID        string    `json:"id"`
	RemovedAt time.Time `json:"removed_at"`
}

// Quorum is the metastore's Raft group. Ends are exclusive: HighWatermark is the
// commit index plus one.
type Quorum struct {
	LeaderID         *string        `json:"leader_id"`
	LeaderEpoch      *uint64        `json:"leader_epoch"`
	LeaderEpochStart *uint64        `json:"leader_epoch_start"`
	HighWatermark    *uint64        `json:"high_watermark"`
	Majority         int            `json:"majority"`
	CommittedBy      []string       `json:"committed_by"`
	AnsweredBy       string         `json:"answered_by"`
	Servers          []QuorumServer `json:"servers"`
}

// QuorumServer is one Raft server.
type QuorumServer struct {
	ID            string  `json:"id"`
	Role          string  `json:"role"`
	Suffrage      string  `json:"suffrage"` // voter, non_voter
	Reachable     bool    `json:"reachable"`
	Member        bool    `json:"member"`
	Release       string  `json:"release"`
	State         string  `json:"state"` // leader, follower, candidate, unknown
	LeaderEpoch   *uint64 `json:"leader_epoch"`
	LEO           *uint64 `json:"leo"`
	Lag           *uint64 `json:"lag"`
	Applied       *uint64 `json:"applied"`
	LastContactMS *int64  `json:"last_contact_ms"`
}

// Info asks one gateway who it is and what it takes.
func (c *Client) Info(ctx context.Context) (Info, error) {
	return read[Info](ctx, c, "read info", "/v1/info")
}

// Members lists the cluster's members; it works with no leader.
func (c *Client) Members(ctx context.Context) (Members, error) {
	return read[Members](ctx, c, "list members", "/v1/cluster/members")
}

// Member reads one member.
func (c *Client) Member(ctx context.Context, id string) (Member, error) {
	return read[Member](ctx, c, "read member", "/v1/cluster/members/"+url.PathEscape(id))
}

// Quorum reads the state of the metastore's Raft group.
func (c *Client) Quorum(ctx context.Context) (Quorum, error) {
	return read[Quorum](ctx, c, "read quorum", "/v1/cluster/quorum")
}

// ClusterStatus is one look at everything by one gateway.
type ClusterStatus struct {
	Status   string           `json:"status"` // ok, degraded, down (no partition has a living leader)
	AsOf     time.Time        `json:"as_of"`
	Problems []ClusterProblem `json:"problems"` // pages first
}

// ClusterProblem is one thing that is wrong.
type ClusterProblem struct {
	Code     string     `json:"code"`
	Severity string     `json:"severity"` // page, ticket
	Subject  string     `json:"subject"`  // a node id, topic/partition, "metastore"
	Since    *time.Time `json:"since"`    // nil: not known
	Detail   string     `json:"detail"`
	Do       string     `json:"do"`
}

// Status asks one gateway what is wrong with the cluster; it works with no leader
// and takes up to 5 s when programs do not answer.
func (c *Client) Status(ctx context.Context) (ClusterStatus, error) {
	return read[ClusterStatus](ctx, c, "read cluster status", "/v1/cluster/status")
}

// ForgetMember removes a Raft server that never became a member. It is not
// repeated once it may have been done.
func (c *Client) ForgetMember(ctx context.Context, id string) error {
	_, err := c.Do(ctx, Call{Op: "forget member", Method: http.MethodPost, Path: "/v1/cluster/members/" + url.PathEscape(id) + "/forget"})
	return err
}

func read[T any](ctx context.Context, c *Client, op, path string) (T, error) {
	var out T
	_, err := c.doJSON(ctx, Call{Op: op, Method: http.MethodGet, Path: path, Safety: RepeatFreely}, &out)
	return out, err
}
