package arch

import (
	"go/ast"
	"testing"
)

// TestSuspicionsReachGatewaysOnly: gossip is a hint for routing. A member hands
// its suspects out by one method, and only the gateway's wiring calls it, so that
// nothing which marks dead, assigns, promotes or removes can have heard of them.
func TestSuspicionsReachGatewaysOnly(t *testing.T) {
	seen := false
	for _, f := range load(t) {
		if f.Test || !matches("apps/...", f.Package) && !matches("libs/...", f.Package) {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Suspects" {
				return true
			}
			if f.Package != "apps/ingress-gateway/gateway" {
				t.Errorf("%s:%d asks whom gossip suspects: only routing may", f.Path, f.Set.Position(n.Pos()).Line)
			}
			seen = true
			return true
		})
	}
	if !seen {
		t.Error("nobody asks whom gossip suspects: the rule looks for the wrong name")
	}
}
