package api

import (
	"bytes"
	"sort"
	"strings"
)

// maxPathParams is the largest number of parameters in one pattern.
const maxPathParams = 2

// node is one segment of the tree of patterns.
type node struct {
	static  map[string]*node
	param   *node
	methods map[string]*Route // nil: no route ends here
	allow   string            // the Allow header
}

// newRouter builds the tree. Patterns are constants of routes.go, so a clash is a
// bug of the program.
func newRouter(routes []Route) *node {
	root := &node{}
	for i := range routes {
		n := root
		for _, seg := range strings.Split(routes[i].Pattern[1:], "/") {
			n = n.child(seg)
		}
		if n.methods == nil {
			n.methods = map[string]*Route{}
		}
		if n.methods[routes[i].Method] != nil {
			panic("BUG: two routes for " + routes[i].Method + " " + routes[i].Pattern)
		}
		n.methods[routes[i].Method] = &routes[i]
		n.allow = methodsOf(n)
	}
	return root
}

func (n *node) child(seg string) *node {
	if strings.HasPrefix(seg, "{") {
		if n.param == nil {
			n.param = &node{}
		}
		return n.param
	}
	if n.static == nil {
		n.static = map[string]*node{}
	}
	if n.static[seg] == nil {
		n.static[seg] = &node{}
	}
	return n.static[seg]
}

func methodsOf(n *node) string {
	var all []string
	for m := range n.methods {
		all = append(all, m)
	}
	sort.Strings(all)
	return strings.Join(all, ", ")
}

// find walks the path as it stands: no cleaning, no decoding, and no parameter
// is empty. It returns nil for what is not a route.
func (n *node) find(path []byte, params *[maxPathParams][]byte) *node {
	if len(path) == 0 || path[0] != '/' {
		return nil // absolute-form and asterisk-form targets are no routes
	}
	path = path[1:]
	count := 0
	for more := true; more; {
		var seg []byte
		seg, path, more = bytes.Cut(path, []byte{'/'})
		next := n.static[string(seg)]
		if next == nil {
			if n.param == nil || len(seg) == 0 || count == maxPathParams {
				return nil
			}
			params[count] = seg
			count++
			next = n.param
		}
		n = next
	}
	if n.methods == nil {
		return nil
	}
	return n
}

func hasTopicParam(pattern string) bool {
	_, params, _ := strings.Cut(pattern, "{")
	return strings.HasPrefix(params, "topic}")
}
