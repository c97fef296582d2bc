package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// Class is a kind of step.
type Class int

// The classes of steps that every world has. The classes of a package begin at OwnClass.
const (
	WatchEvent Class = iota
	Answer
	Reconcile
	Call
	User
	OwnClass
)

// Step is something that can happen next.
type Step struct {
	Class Class
	Text  string
	Run   func()
}

// Order selects the next step. The steps it gets are in a fixed order, and there is at least one.
type Order func([]Step) Step

// Orders are the orders that differ in what is fast and what is slow, by name.
var Orders = map[string]Order{
	"eager": PreferClasses(WatchEvent, Answer, Reconcile, Call, User), // watches are faster than answers
	"lazy":  PreferClasses(Answer, Call, Reconcile, WatchEvent, User), // watches come last
	"tardy": PreferClasses(WatchEvent, Reconcile, Call, User, Answer), // answers come last
}

// PreferClasses returns an order that prefers the classes in the given order.
func PreferClasses(classes ...Class) Order {
	return func(steps []Step) Step {
		return slices.MinFunc(steps, func(a, b Step) int {
			return cmp.Compare(slices.Index(classes, a.Class), slices.Index(classes, b.Class))
		})
	}
}

// RandomOrder returns an order that takes a random step.
func RandomOrder(r *rand.Rand) Order {
	return func(steps []Step) Step { return steps[r.IntN(len(steps))] }
}
