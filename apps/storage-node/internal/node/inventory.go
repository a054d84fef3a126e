package node

import (
	"context"
	"encoding/base64"
	"fmt"
	"path"
	"strings"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topicdir"
)

// maxMeasured bounds the files that one page sizes: a look at each costs about
// a microsecond, and a page has to fit well into the budget of its call.
const maxMeasured = 50_000

// Inventory implements nodeapi.Node. It reads the disk as it is, without any
// guard, and opens no partition.
func (n *Node) Inventory(ctx context.Context, req *nodeapi.InventoryRequest) (*nodeapi.InventoryResult, error) {
	after, err := base64.RawURLEncoding.DecodeString(req.After)
	if err != nil || len(req.After) > nodeapi.MaxInventoryToken {
		return nil, problem.New(problem.InvalidRequest, "after is not a token of a page").With("parameter", "after")
	}
	limit := req.Limit
	if limit < 1 || limit > nodeapi.MaxInventoryEntries {
		limit = nodeapi.MaxInventoryEntries
	}
	unreadable := map[string]bool{} // by name below the data directory; at most limit
	noted := func(e topicdir.Entry, err error) {
		unreadable[e.Key()] = true
		n.log.Warn("a topic directory cannot be looked at", "directory", e.Key(), "error", err)
	}
	list, more, err := n.cfg.Dirs.Page(string(after), limit, noted)
	if err != nil {
		return nil, fmt.Errorf("read the inventory of %s: %w", n.self, err)
	}
	res := &nodeapi.InventoryResult{Entries: make([]nodeapi.InventoryEntry, 0, len(list))}
	files, partitions := maxMeasured, 0
	for i, e := range list {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		entry := inventoryEntry(e)
		entry.Unreadable = unreadable[e.Key()]
		if err := n.lookInto(e.Key(), &entry, &files); err != nil {
			noted(e, err)
			entry.Unreadable = true
		}
		res.Entries = append(res.Entries, entry)
		partitions += len(entry.Partitions)
		more = more || partitions >= nodeapi.MaxInventoryPartitions-maxPartitions && i+1 < len(list)
		if more && (i+1 == len(list) || partitions >= nodeapi.MaxInventoryPartitions-maxPartitions) {
			res.Next = base64.RawURLEncoding.EncodeToString([]byte(e.Key()))
			break
		}
	}
	return res, nil
}
