package schedule

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Step is something that can happen next. Steps of a class are of one kind: a watch shows something, an answer arrives.
type Step[Class comparable] struct {
	Class Class
	Text  string
	Do    func()
}

// Order says which of the possible steps is next. Steps come in a fixed order, and there is one at least.
type Order[Class comparable] func([]Step[Class]) Step[Class]

// First prefers some classes to others.
func First[Class comparable](classes ...Class) Order[Class] {
	return func(steps []Step[Class]) Step[Class] {
		return slices.MinFunc(steps, func(a, b Step[Class]) int {
			return cmp.Compare(slices.Index(classes, a.Class), slices.Index(classes, b.Class))
		})
	}
}

// Shuffled takes any step.
func Shuffled[Class comparable](r *rand.Rand) Order[Class] {
	return func(steps []Step[Class]) Step[Class] { return steps[r.IntN(len(steps))] }
}
