package dispatchq

// bag is a set whose order depends on nothing but what was done to it, so that a
// seed reproduces a run of the model. place tells where an element keeps its index.
type bag[T any] struct {
	list  []T
	place func(T) *int
}

func (b *bag[T]) add(x T) {
	*b.place(x) = len(b.list)
	b.list = append(b.list, x)
}

func (b *bag[T]) remove(x T) {
	i, last := *b.place(x), len(b.list)-1
	b.list[i] = b.list[last]
	*b.place(b.list[i]) = i
	var none T
	b.list[last] = none
	b.list = b.list[:last]
}
