package arch

import (
	"go/ast"
	"slices"
	"testing"
)

// movers may rename or remove files and directories by path, and why. Everything
// else that ships may not: a topic directory is renamed and removed by one function
// (topicdir.act), which takes the metastore leader's verdict.
var movers = map[string]string{
	"libs/topicdir":      "act is that function; it clears staging too",
	"libs/vfs":           "it is the file system",
	"libs/seglog":        "segments of one log, by a log that is open",
	"libs/partlog":       "files of one partition copy, by a log that is open or being opened",
	"libs/wal":           "parked logs of a gateway, which has no topic directories",
	"libs/member":        "the identity file",
	"libs/raftnode":      "snapshots and the metastore's file",
	"libs/tlsconf/certs": "certificates that were half written",
}

// TestOnlyTopicdirMovesTopicDirectories finds every call of something named Rename,
// Remove or RemoveAll with a path (one or two arguments) outside of movers.
func TestOnlyTopicdirMovesTopicDirectories(t *testing.T) {
	used := map[string]bool{}
	for _, f := range load(t) {
		if f.Test || !matches("apps/...", f.Package) && !matches("libs/...", f.Package) || matches("libs/testkit/...", f.Package) {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Rename", "RemoveAll", "Remove"}, sel.Sel.Name) || len(call.Args) == 0 || notAPath(sel) {
				return true
			}
			if movers[f.Package] == "" {
				t.Errorf("%s: %s: only %v rename or remove by path", f.Set.Position(call.Pos()), sel.Sel.Name, keys(movers))
			}
			used[f.Package] = true
			return true
		})
	}
	for p := range movers {
		if !used[p] {
			t.Errorf("%s moves nothing any more: take it off the list", p)
		}
	}
}

// notAPath tells calls of lists and heaps, whose Remove takes an element.
func notAPath(sel *ast.SelectorExpr) bool {
	switch x := sel.X.(type) {
	case *ast.Ident:
		return x.Name == "heap"
	case *ast.SelectorExpr:
		return x.Sel.Name == "list"
	}
	return false
}

func keys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
