package node

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
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
	files, partitions, copies := maxMeasured, 0, 0
	for i, e := range list {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read the inventory of %s: %w", n.self, err)
		}
		entry := entryOf(e)
		if err := n.lookInto(e, &entry, &files); err != nil {
			noted(e, err)
		}
		if req.Copies && e.Kind == topicdir.Serving && e.Marker != 0 {
			if entry.Copies, err = n.asideIn(e, &files); err != nil {
				noted(e, err)
			}
		}
		copies += len(entry.Copies)
		entry.Unreadable = unreadable[e.Key()]
		res.Entries = append(res.Entries, entry)
		partitions += len(entry.Partitions)
		last := i+1 == len(list)
		if last && more || !last && (partitions > nodeapi.MaxInventoryPartitions-topic.MaxPartitions || copies >= nodeapi.MaxInventoryCopies) {
			res.Next = base64.RawURLEncoding.EncodeToString([]byte(e.Key()))
			break
		}
	}
	return res, nil
}

func entryOf(e topicdir.Entry) nodeapi.InventoryEntry {
	return nodeapi.InventoryEntry{
		Kind: kindOf(e.Kind), Name: printable(e.Key()), Topic: printable(e.Topic), Incarnation: e.Marker, Partitions: []int32{}, Bytes: -1,
	}
}

func kindOf(k topicdir.Kind) nodeapi.InventoryKind {
	switch k {
	case topicdir.Serving:
		return nodeapi.InventoryServing
	case topicdir.SetAside:
		return nodeapi.InventoryQuarantine
	case topicdir.Superseded:
		return nodeapi.InventorySuperseded
	case topicdir.Staged:
		return nodeapi.InventoryStaging
	case topicdir.Foreign:
	}
	return nodeapi.InventoryForeign
}

// printable keeps a foreign name within what JSON can carry.
func printable(name string) string { return strings.ToValidUTF8(name, "\ufffd") }

// lookInto finds the partition copies in a directory and sizes their files,
// while files lasts. What has gone meanwhile is not missed.
func (n *Node) lookInto(e topicdir.Entry, entry *nodeapi.InventoryEntry, files *int) error {
	if e.Kind == topicdir.Foreign {
		return nil // whatever it is, it is not read
	}
	dir := path.Join(n.cfg.DataDir, e.Key())
	in, err := n.cfg.FS.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	total := int64(0)
	for _, d := range in {
		p, ok := topicdir.ParsePartition(d.Name())
		if !ok || len(entry.Partitions) == topic.MaxPartitions {
			continue
		}
		entry.Partitions = append(entry.Partitions, p)
		bytes, err := n.sizeOf(path.Join(dir, d.Name()), files)
		if err != nil {
			return err
		}
		total += bytes
	}
	if *files >= 0 {
		entry.Bytes = total
	}
	return nil
}

// asideIn lists the copies in a topic's directory that are out of their partition's
// name, at most as many as a topic has partitions.
func (n *Node) asideIn(e topicdir.Entry, files *int) ([]nodeapi.InventoryCopy, error) {
	list, err := n.cfg.Dirs.Aside(e)
	if errors.Is(err, fs.ErrNotExist) || err != nil && errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	var out []nodeapi.InventoryCopy
	for _, c := range list[:min(len(list), topic.MaxPartitions)] {
		row := nodeapi.InventoryCopy{
			Kind: nodeapi.InventoryQuarantine, Name: path.Join(e.Key(), c.Name), Partition: c.Partition, Copy: c.Copy, Bytes: -1,
			SinceMS: c.Note.SinceMS, Reason: c.Note.Reason,
		}
		if c.Leaving {
			row.Kind, row.Reason = nodeapi.InventorySuperseded, "its leader held all of it; the removal was interrupted"
		}
		bytes, serr := n.sizeOf(path.Join(n.cfg.DataDir, row.Name), files)
		err = errors.Join(err, serr)
		if *files >= 0 {
			row.Bytes = bytes
		}
		out = append(out, row)
	}
	return out, err
}

// sizeOf adds up the files of one partition copy.
func (n *Node) sizeOf(dir string, files *int) (total int64, err error) {
	if *files < 0 {
		return 0, nil
	}
	in, err := n.cfg.FS.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return 0, fmt.Errorf("list %s: %w", dir, err)
	}
	for _, f := range in {
		if *files--; *files < 0 {
			return 0, nil
		}
		info, err := f.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist): // retention took it
		case err != nil:
			return 0, fmt.Errorf("look at %s in %s: %w", f.Name(), dir, err)
		default:
			total += info.Size()
		}
	}
	return total, nil
}
