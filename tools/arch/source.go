package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Module is the path that all modules of the workspace begin with.
const Module = "github.com/narad-mq/narad/"

// File is one parsed Go file of the workspace.
type File struct {
	Path    string // slash-separated, from the root
	Package string // directory, from the root
	Test    bool
	Lines   int
	Imports []string
	AST     *ast.File
	Set     *token.FileSet
	Text    string
}

// Load parses every Go file below root.
func Load(root string) ([]*File, error) {
	var files []*File
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parse(root, path)
		if err == nil {
			files = append(files, f)
		}
		return err
	})
	return files, err
}

func parse(root, path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, path, text, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return nil, err
	}
	rel = filepath.ToSlash(rel)
	f := &File{
		Path: rel, Package: strings.TrimSuffix(rel, "/"+filepath.Base(rel)), Test: strings.HasSuffix(rel, "_test.go"),
		Lines: strings.Count(string(text), "\n"), AST: tree, Set: set, Text: string(text),
	}
	for _, spec := range tree.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		f.Imports = append(f.Imports, p)
	}
	return f, nil
}

// matches tells whether a path is the pattern or, for a pattern that ends in
// "/...", lies at or below it.
func matches(pattern, path string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == base || strings.HasPrefix(path, base+"/")
	}
	return path == pattern
}
