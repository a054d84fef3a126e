package arch

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func load(t *testing.T) []*File {
	t.Helper()
	files, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("found only %d files: the walk looks in the wrong place", len(files))
	}
	return files
}

func layerOf(pkg string) int {
	// The most specific pattern wins: libs/client/... over nothing else today.
	for i, l := range layers {
		for _, p := range l.packages {
			if matches(p, pkg) {
				return i
			}
		}
	}
	return -1
}

func TestDependenciesPointOneWay(t *testing.T) {
	for _, f := range load(t) {
		if slices.ContainsFunc(anywhere, func(p string) bool { return matches(p, f.Package) }) {
			continue
		}
		own := layerOf(f.Package)
		if own < 0 {
			t.Errorf("%s: package %s stands in no layer of rules.go", f.Path, f.Package)
			continue
		}
		if f.Test {
			continue // tests may reach for fakes and neighbours; what ships may not
		}
		for _, imp := range f.Imports {
			pkg, ours := strings.CutPrefix(imp, Module)
			if !ours {
				continue
			}
			if slices.Contains(testOnly, pkg) {
				t.Errorf("%s imports %s: only tests may", f.Path, pkg)
			} else if slices.ContainsFunc(anywhere, func(p string) bool { return matches(p, pkg) }) {
				if !slices.Contains(testOnly, f.Package) {
					t.Errorf("%s imports %s: only tests may", f.Path, pkg)
				}
			} else if other := layerOf(pkg); other > own {
				t.Errorf("%s (%s) imports %s (%s): dependencies point up only", f.Path, layers[own].name, pkg, layers[other].name)
			}
		}
	}
}

func TestBannedImports(t *testing.T) {
	files := load(t)
	for _, b := range bans {
		matched := false
		for _, f := range files {
			if !matches(b.packages, f.Package) || slices.ContainsFunc(b.except, func(p string) bool { return matches(p, f.Package) }) {
				continue
			}
			matched = true
			if f.Test {
				continue
			}
			for _, imp := range f.Imports {
				if matches(b.imports, imp) {
					t.Errorf("%s imports %s: %s", f.Path, imp, b.reason)
				}
			}
		}
		if !matched {
			t.Errorf("rule about %s importing %s matches no package any more", b.packages, b.imports)
		}
	}
}

// TestPublicClientNeedsTheStandardLibraryOnly: who uses the client inherits no
// dependency of Narad's.
func TestPublicClientNeedsTheStandardLibraryOnly(t *testing.T) {
	seen := 0
	for _, f := range load(t) {
		if !matches("libs/client/...", f.Package) || f.Test {
			continue
		}
		seen++
		for _, imp := range f.Imports {
			first, _, _ := strings.Cut(imp, "/")
			if strings.Contains(first, ".") && !matches(Module+"libs/client/...", imp) {
				t.Errorf("%s imports %s", f.Path, imp)
			}
		}
	}
	if seen == 0 {
		t.Error("found no file of the client")
	}
}

func TestSizeBudgets(t *testing.T) {
	var files, small, funcs, short int
	used := map[string]bool{}
	over := func(key string, lines, limit int) {
		if lines <= limit {
			return
		}
		if tooLong[key] == "" {
			t.Errorf("%s has %d lines, limit %d: split it by responsibility", key, lines, limit)
		}
		used[key] = true
	}
	for _, f := range load(t) {
		if f.Test {
			continue
		}
		files++
		if f.Lines < fileGoal {
			small++
		}
		over(f.Path, f.Lines, fileLimit)
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			funcs++
			lines := f.Set.Position(fn.End()).Line - f.Set.Position(fn.Pos()).Line + 1
			if lines < funcGoal {
				short++
			}
			over(f.Path+":"+fn.Name.Name, lines, funcLimit)
		}
	}
	if got := float64(small) / float64(files); got < share {
		t.Errorf("only %.0f %% of %d files are under %d lines", got*100, files, fileGoal)
	}
	if got := float64(short) / float64(funcs); got < share {
		t.Errorf("only %.0f %% of %d functions are under %d lines", got*100, funcs, funcGoal)
	}
	for key := range tooLong {
		if !used[key] {
			t.Errorf("exception for %s is not needed any more", key)
		}
	}
}

func TestPackagesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, f := range load(t) {
		if f.Test {
			continue
		}
		documented[f.Package] = documented[f.Package] || f.AST.Doc != nil
		if slices.Contains(bannedNames, f.AST.Name.Name) {
			t.Errorf("%s: package name %q says nothing", f.Path, f.AST.Name.Name)
		}
		if f.AST.Name.Name != "main" {
			undocumented(f, func(name string, pos token.Pos) {
				t.Errorf("%s:%d: exported %s has no comment", f.Path, f.Set.Position(pos).Line, name)
			})
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}

// undocumented reports every exported declaration without a comment.
func undocumented(f *File, report func(string, token.Pos)) {
	for _, d := range f.AST.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
				report(d.Name.Name, d.Pos())
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
						report(s.Name.Name, s.Pos())
					}
				case *ast.ValueSpec:
					for _, n := range s.Names {
						if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
							report(n.Name, n.Pos())
						}
					}
				}
			}
		}
	}
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

func TestHabits(t *testing.T) {
	for _, f := range load(t) {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if sel, ok := n.Fun.(*ast.SelectorExpr); ok && f.Test {
					if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && sel.Sel.Name == "Sleep" && !inSynctest(f) {
						t.Errorf("%s:%d: a test sleeps; poll, signal or use testing/synctest", f.Path, f.Set.Position(n.Pos()).Line)
					}
				}
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					t.Errorf("%s: init() hides what starts when", f.Path)
				}
			}
			return true
		})
		for _, c := range f.AST.Comments {
			for _, line := range c.List {
				if strings.HasPrefix(line.Text, "//nolint") || strings.HasPrefix(line.Text, "//lint:ignore") && len(strings.Fields(line.Text)) < 4 {
					t.Errorf("%s:%d: a linter is silenced without a reason", f.Path, f.Set.Position(line.Pos()).Line)
				}
			}
		}
	}
}

// inSynctest tells whether a file's time is the fake one, where a sleep is an
// exact wait that costs nothing.
func inSynctest(f *File) bool { return slices.Contains(f.Imports, "testing/synctest") }

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(topLevel, e.Name()) {
			t.Errorf("%s stands at the top level", e.Name())
		}
	}
	for _, app := range []string{"metastore-voter", "storage-node", "ingress-gateway", "purge-sweeper"} {
		readme := filepath.Join(root, "apps", app, "README.md")
		if _, err := os.Stat(readme); err != nil {
			t.Errorf("%s: a role has a guide for operators", readme)
		}
		text, err := os.ReadFile(filepath.Join(root, "apps", app, "main.go"))
		if err != nil {
			t.Error(err)
		} else if n := strings.Count(string(text), "\n"); n > 60 {
			t.Errorf("apps/%s/main.go has %d lines: it is a table of contents of at most 60", app, n)
		}
	}
}

func TestCodeownersNamesEveryAppAndLib(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "CODEOWNERS"))
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"apps", "libs"} {
		entries, err := os.ReadDir(filepath.Join(root, group))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() && !strings.Contains(string(text), "/"+group+"/"+e.Name()+"/ ") {
				t.Errorf("CODEOWNERS has no line for /%s/%s/", group, e.Name())
			}
		}
	}
}
