package sim

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// Config is what a package supplies to its world. Functions that are nil do nothing, unless it says otherwise.
type Config[M Manager] struct {
	// Servers are the API servers.
	Servers []*faults.Server
	// StartInPlaceOf starts another manager in the place of one that was killed or paused.
	StartInPlaceOf func(M)

	// Pause is how long nothing changes before a user acts, or a fault ends.
	Pause time.Duration
	// Rest is how long nothing changes before everything counts as being at rest: longer than a pause, and than
	// whatever managers wait for. After that the world is watched for Watched: no manager calls a server then, and there
	// are at most as many reconciles as MaxReconcilesAtRest returns; nil means that this is not checked.
	Rest, Watched       time.Duration
	MaxReconcilesAtRest func() int
	// MaxIdleSteps is the number of steps without a change at which the managers count as spinning; 0 means 300. Whenever
	// no step is possible, IdleStepDecay of them are forgotten.
	MaxIdleSteps, IdleStepDecay int
	// NextTime returns when the world is examined again if nothing happens before; nil means at the next pause, or rest.
	NextTime func() time.Time

	// ManagerSteps returns what can happen to a manager beside watch events and reconciles, OtherSteps what other actors
	// can do.
	ManagerSteps func(M) []Step
	OtherSteps   func() []Step
	// SelectStep selects the next step; nil means that the order of the world does.
	SelectStep func([]Step) Step
	// AnswersDead reports whether the answer to a call of a dead manager is a step too.
	AnswersDead bool

	// Intercept returns true if it has decided what happens to a call; it comes before the disturbance of the world.
	// Execute executes a call; nil means that its server does.
	Intercept func(*faults.Request) bool
	Execute   func(*faults.Request) (any, error)

	// BeforeStep runs before each step, OnCall when a call reaches its server, OnWatchEvent before a watch shows a change,
	// OnReconcile before a reconcile begins, OnAct before a user acts, and OnIdle when no step is possible.
	BeforeStep   func()
	OnCall       func(*faults.Request)
	OnWatchEvent func(M, faults.Change)
	OnReconcile  func(M, *Queue)
	OnAct        func()
	OnIdle       func()
	// AfterWrite runs after whatever may have changed a server: other writers that react at once. OnChange checks what
	// must hold after a change, which a user has made or not.
	AfterWrite func()
	OnChange   func(byUser bool)
}
