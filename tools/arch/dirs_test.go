package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
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

// changes are the functions of package os and the methods of vfs.FS that rename or
// remove by path, and how many arguments, all of them paths, each takes.
var changes = map[string]int{"Rename": 2, "Remove": 1, "RemoveAll": 1}

// TestOnlyTopicdirMovesTopicDirectories finds every call that may rename or remove a
// file outside of movers.
func TestOnlyTopicdirMovesTopicDirectories(t *testing.T) {
	files := load(t)
	used := map[string]bool{}
	for _, f := range files {
		if f.Test || !matches("apps/...", f.Package) && !matches("libs/...", f.Package) || matches("libs/testkit/...", f.Package) {
			continue
		}
		for _, call := range fileChanges(f) {
			if movers[f.Package] == "" {
				t.Errorf("%s: only %v rename or remove by path", f.Set.Position(call.Pos()), keys(movers))
			}
			used[f.Package] = true
		}
	}
	for p := range movers {
		if !used[p] {
			t.Errorf("%s moves nothing any more: take it off the list", p)
		}
	}
}

// TestFileChanges: what is taken for a change of the file system, and what is not.
func TestFileChanges(t *testing.T) {
	for text, want := range map[string]int{
		`import "os"; func f() { os.Remove("a") }`:                                                   1,
		`import "os"; func f() { os.Rename("a", "b") }`:                                              1,
		`import o "os"; func f() { o.RemoveAll("a") }`:                                               1,
		`func (s *S) f(at string) { s.fs.Remove(at) }`:                                               1,
		`func (s *S) f(at string) { s.cfg.FS.RemoveAll(at) }`:                                        1,
		`func (s *S) f() error { return s.cfg.FS.Rename(s.path("a"), s.path("b")) }`:                 1,
		`func (s *S) f() { do := s.fs.Remove; do("a") }`:                                             1,
		`func (s *S) f() { s.each(s.cfg.FS.RemoveAll) }`:                                             1,
		`import "context"; func (r *R) f(ctx context.Context, s Step) { r.cfg.Meta.Remove(ctx, s) }`: 0,
		`func (r *R) f() { r.log.Remove() }`:                                                         0,
		`import "container/heap"; func f(h heap.Interface) { heap.Remove(h, 1) }`:                    0,
		`import "container/list"; func (c *C) f(e *list.Element) { c.list.Remove(e) }`:               0,
		`func (s *S) f(q *Request) bool { return q.Remove }`:                                         0,
		`func f() { rename("a", "b") }`:                                                              0,
	} {
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, "x.go", "package x; "+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(fileChanges(&File{AST: tree, Set: set})); got != want {
			t.Errorf("%d, want %d: %s", got, want, text)
		}
	}
}

// fileChanges finds the calls of a file that may change the file system by path: by
// name and number of arguments, and every use of such a method of a file system as a
// value.
func fileChanges(f *File) (found []ast.Node) {
	calls := map[ast.Expr]*ast.CallExpr{}
	ast.Inspect(f.AST, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			calls[n.Fun] = n
		case *ast.SelectorExpr:
			paths, ok := changes[n.Sel.Name]
			call := calls[n]
			if ok && (call == nil && isFileSystem(n.X) || call != nil && len(call.Args) == paths && !notAPath(n)) {
				found = append(found, n)
			}
		}
		return true
	})
	return found
}

// isFileSystem tells by its name what a value whose method is not called is: a field
// may be called Remove as well.
func isFileSystem(x ast.Expr) bool {
	name := ""
	switch x := x.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	return slices.Contains([]string{"os", "fs", "FS", "fsys"}, name)
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
