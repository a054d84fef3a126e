package arch

// layers are the groups of packages from top to bottom: a package may import
// packages of its own group and of the groups above, never of one below.
var layers = []struct {
	name     string
	packages []string
}{
	{"client", []string{"libs/client/..."}},
	{"pure", []string{
		"libs/topic", "libs/record", "libs/metastate", "libs/quorum/...", "libs/lease", "libs/placement",
		"libs/problem", "libs/dispatchq/...", "libs/fanout", "libs/backup", "libs/release",
	}},
	{"local I/O", []string{"libs/vfs/...", "libs/seglog", "libs/wal/...", "libs/partlog/...", "libs/topicdir"}},
	{"contracts", []string{"libs/rpc/...", "libs/metaapi/...", "libs/nodeapi/...", "libs/gatewayapi/..."}},
	{"adapters", []string{"libs/raftnode/...", "libs/gossip", "libs/bus"}},
	{"process", []string{"libs/proc", "libs/ops", "libs/member/...", "libs/tlsconf/...", "libs/auth"}},
	{"apps", []string{"apps/..."}},
	{"tools", []string{"tools/...", "e2e/..."}},
}

// anywhere may be imported by tests of every layer, and by what tests alone import.
var anywhere = []string{"libs/testkit/..."}

// testOnly are packages that are no test files and that tests alone import.
var testOnly = []string{"e2e/harness"}

// Ban forbids an import.
type Ban struct {
	packages string // who
	imports  string // what, as an import path or a pattern of one
	reason   string
	except   []string // packages that may
}

var bans = []Ban{
	{"libs/topic", "os", "pure: no files", nil},
	{"libs/record", "os", "pure: no files", nil},
	{"libs/metastate", "time", "pure: every clock value comes in an entry", nil},
	{"libs/metastate", "math/rand/v2", "pure: every random value comes in an entry", nil},
	{"libs/metastate", "crypto/rand", "pure: every random value comes in an entry", nil},
	{"libs/metastate", "os", "pure: no files", nil},
	{"libs/quorum/...", "time", "pure: the commit rule knows no clock", nil},
	{"libs/quorum/...", "os", "pure: no files", nil},
	{"libs/release", "time", "pure: data", nil},
	{"libs/release", "os", "pure: data", nil},
	{"libs/placement", "time", "pure: a plan is a function of the metastore", nil},
	{"libs/placement", "math/rand/v2", "pure: a plan is a function of the metastore", nil},
	{"libs/lease", "math/rand/v2", "pure: nonces are arguments", nil},
	{"libs/lease", "os", "pure: no files", nil},
	{"libs/...", "github.com/hashicorp/raft/...", "one adapter per library", []string{"libs/raftnode/..."}},
	{"apps/...", "github.com/hashicorp/raft/...", "one adapter per library", nil},
	{"libs/...", "go.etcd.io/bbolt", "one adapter per library", []string{"libs/raftnode/..."}},
	{"apps/...", "go.etcd.io/bbolt", "one adapter per library", nil},
	{"libs/...", "github.com/hashicorp/memberlist/...", "one adapter per library", []string{"libs/gossip"}},
	{"apps/...", "github.com/hashicorp/memberlist/...", "one adapter per library", nil},
	{"libs/...", "github.com/nats-io/...", "one adapter per library", []string{"libs/bus"}},
	{"apps/...", "github.com/nats-io/...", "one adapter per library; the server is for tools and tests", nil},
	{"libs/...", "github.com/narad-mq/narad/libs/gossip", "gossip is a hint for routing: what decides, elects or destroys cannot see it", []string{"libs/member"}},
	{"apps/...", "github.com/narad-mq/narad/libs/gossip", "gossip is a hint for routing: a gateway is handed it, and nobody else", nil},
	{"apps/...", "github.com/valyala/fasthttp", "handlers do not depend on the server", []string{"apps/ingress-gateway/internal/edge"}},
	{"libs/...", "github.com/narad-mq/narad/apps/...", "an app is never a library", nil},
	{"apps/metastore-voter/...", "github.com/narad-mq/narad/apps/storage-node/...", "roles meet in contract packages only", nil},
	{"apps/metastore-voter/...", "github.com/narad-mq/narad/apps/ingress-gateway/...", "roles meet in contract packages only", nil},
	{"apps/storage-node/...", "github.com/narad-mq/narad/apps/metastore-voter/...", "roles meet in contract packages only", nil},
	{"apps/storage-node/...", "github.com/narad-mq/narad/apps/ingress-gateway/...", "roles meet in contract packages only", nil},
	{"apps/ingress-gateway/...", "github.com/narad-mq/narad/apps/metastore-voter/...", "roles meet in contract packages only", nil},
	{"apps/ingress-gateway/...", "github.com/narad-mq/narad/apps/storage-node/...", "roles meet in contract packages only", nil},
	{"apps/metastore-voter/...", "github.com/narad-mq/narad/apps/purge-sweeper/...", "roles meet in contract packages only", nil},
	{"apps/storage-node/...", "github.com/narad-mq/narad/apps/purge-sweeper/...", "roles meet in contract packages only", nil},
	{"apps/ingress-gateway/...", "github.com/narad-mq/narad/apps/purge-sweeper/...", "roles meet in contract packages only", nil},
	{"apps/purge-sweeper/...", "github.com/narad-mq/narad/apps/metastore-voter/...", "roles meet in contract packages only", nil},
	{"apps/purge-sweeper/...", "github.com/narad-mq/narad/apps/storage-node/...", "roles meet in contract packages only", nil},
	{"apps/purge-sweeper/...", "github.com/narad-mq/narad/apps/ingress-gateway/...", "roles meet in contract packages only", nil},
	{"apps/purge-sweeper/...", "github.com/narad-mq/narad/libs/member/...", "the sweeper is no member: it asks, and has no replica to trust", nil},
	{"apps/purge-sweeper/...", "github.com/narad-mq/narad/libs/raftnode/...", "the sweeper is no member: it asks, and has no replica to trust", nil},
	{"apps/purge-sweeper/...", "github.com/narad-mq/narad/libs/vfs/...", "the sweeper keeps nothing on disk and touches no directory: nodes do", nil},
	{"apps/purge-sweeper/...", "os", "the sweeper keeps nothing on disk and touches no directory: nodes do", nil},
}

// Budgets of size (engineering.md): the limit is for each, the goal for nine of ten.
const (
	fileLimit, fileGoal = 500, 300
	funcLimit, funcGoal = 70, 40
	share               = 0.9
)

// tooLong lists files and functions ("path:Name") that may pass the limit, and why.
var tooLong = map[string]string{}

// bannedNames are package names that say nothing.
var bannedNames = []string{"util", "utils", "common", "base", "helper", "helpers", "misc"}

// topLevel is what may stand at the root.
var topLevel = []string{
	"apps", "libs", "deploy", "tools", "e2e", "Makefile", "CODEOWNERS", "README.md", "LICENSE", "CONTRIBUTING.md",
	"go.work", "go.work.sum", "bin",
}
