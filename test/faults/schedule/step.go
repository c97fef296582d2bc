package schedule

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Step is something that can happen next. Steps of a class are of one sort, for example: a watch shows a change, an
// answer arrives.
type Step[Class comparable] struct {
	Class Class
	Text  string
	Run   func()
}

// Order chooses the next step. The steps it gets are in a fixed order and there is at least one.
type Order[Class comparable] func([]Step[Class]) Step[Class]

// PreferClasses returns an order that prefers the classes in the given order.
func PreferClasses[Class comparable](classes ...Class) Order[Class] {
	return func(steps []Step[Class]) Step[Class] {
		return slices.MinFunc(steps, func(a, b Step[Class]) int {
			return cmp.Compare(slices.Index(classes, a.Class), slices.Index(classes, b.Class))
		})
	}
}

// RandomOrder returns an order that takes a random step.
func RandomOrder[Class comparable](r *rand.Rand) Order[Class] {
	return func(steps []Step[Class]) Step[Class] { return steps[r.IntN(len(steps))] }
}
