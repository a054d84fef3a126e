package topic

// Load is what a node holds of all partitions together.
type Load struct {
	Replicas int // observers do not count
	Leads    int // partitions
}

// Loads is the load of every node that holds something, by node id.
type Loads map[string]Load

// Add counts a partition in.
func (l Loads) Add(a *Assignment) { l.count(a, 1) }

// Remove takes a partition out that was counted in as it is.
func (l Loads) Remove(a *Assignment) { l.count(a, -1) }

func (l Loads) count(a *Assignment, n int) {
	for _, r := range a.Replicas {
		l.change(r.Node, Load{Replicas: n})
	}
	if a.Leader != "" {
		l.change(a.Leader, Load{Leads: n})
	}
}

func (l Loads) change(node string, by Load) {
	is := l[node]
	is.Replicas += by.Replicas
	is.Leads += by.Leads
	if is == (Load{}) {
		delete(l, node)
		return
	}
	l[node] = is
}
