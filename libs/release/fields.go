package release

// Field is a request field that came after the first release and that a sender
// can do without: absent, it means what the operation meant before.
type Field struct {
	Operation string // as rpc.Method names it
	Name      string // of a member of the request object itself, not of one in it
	Since     string // first release that knows it
}

// Fields is the table of droppable fields. A peer that refuses one of them with
// 400 and its name gets the request again without it, at once (package rpc). A
// field without which a request must not be carried out never stands here: that
// an older peer refuses it is final.
//
// Operations with raw bodies (commit, claim, settle, read) have no rows: their
// layouts are fixed, and nothing in them is optional.
func Fields() []Field {
	return []Field{
		{"join", "newest_entry_type", "0.2.0"},
		{"register", "newest_entry_type", "0.2.0"},
		{"heartbeat", "newest_entry_type", "0.2.0"},
		{"heartbeat", "release", "0.2.0"},
		{"heartbeat", "lost", "0.2.0"},
		{"inventory", "copies", "0.2.0"},
		{"vouch", "pieces", "0.2.0"},
	}
}

// Droppable lists the fields of an operation that may be left out.
func Droppable(operation string) (names []string) {
	for _, f := range Fields() {
		if f.Operation == operation {
			names = append(names, f.Name)
		}
	}
	return names
}

// Lacks lists the fields of an operation that release own does not know yet.
func Lacks(own, operation string) (names []string) {
	for _, f := range Fields() {
		if f.Operation == operation && !Has(own, f.Since) {
			names = append(names, f.Name)
		}
	}
	return names
}
