package sim

import "time"

// Action is what a user of the world W does.
type Action[W any] struct {
	Text string
	// Wait is how long nothing changes before the action, if that is longer than the pause of the world.
	Wait time.Duration
	// When reports whether the moment of the action has come; nil means that it happens after a pause. If the moment
	// never comes, the action happens at rest.
	When func(W) bool
	// Do returns false if the action is not possible yet.
	Do func(W) bool

	// isChange reports whether the action counts as a change also where it changes no object.
	isChange bool
}

// NewAction returns an action that is always possible. It counts as a change also where it changes no object.
func NewAction[W any](text string, do func(W)) Action[W] {
	return Action[W]{Text: text, isChange: true, Do: func(w W) bool {
		do(w)
		return true
	}}
}

// NewAttempt returns an action that is tried again until do returns true.
func NewAttempt[W any](text string, do func(W) bool) Action[W] {
	return Action[W]{Text: text, Do: do}
}

// Act runs the user's next action.
func (w *World[W, M]) Act() {
	if w.config.OnAct != nil {
		w.config.OnAct()
	}
	a, version, possible := w.Script[0], w.version(), false
	w.ChangeAsUser(a.Text, func() { possible = a.Do(w.self) })
	switch {
	case possible:
		if w.skipAction(); a.isChange {
			w.LastChange = time.Now()
		}
	case w.UserPatience > 0 && w.attempts >= w.UserPatience:
		w.Tracef("the user gives up: %s", a.Text)
		w.skipAction()
		w.LastChange = time.Now()
	default:
		w.LastChange, w.stalledAt = time.Now(), version
		w.attempts++
	}
}

// PerformAction runs an action of a user beside the script.
func (w *World[W, M]) PerformAction(a Action[W]) {
	w.ChangeAsUser(a.Text, func() { a.Do(w.self) })
}

func (w *World[W, M]) skipAction() { w.Script, w.stalledAt = w.Script[1:], 0 }

// isMoment reports whether the moment of the user's next action has come.
func (w *World[W, M]) isMoment() bool {
	return len(w.Script) > 0 && w.Script[0].When != nil && w.Script[0].When(w.self)
}

// isPauseOver reports whether a user who waits acts now.
func (w *World[W, M]) isPauseOver() bool {
	return len(w.Script) > 0 && w.UserWhims == nil && (w.Impatient || !w.HasDelayedSteps()) && time.Since(w.LastChange) >= w.UserWait()
}

// UserWait returns how long nothing changes before the user's next action.
func (w *World[W, M]) UserWait() time.Duration {
	if w.Script[0].When != nil {
		return w.config.Rest
	}
	return max(w.config.Pause, w.Script[0].Wait)
}

// isWhim reports whether a user who acts at random acts now, one time in n.
func (w *World[W, M]) isWhim(n int) bool {
	return w.UserWhims != nil && len(w.Script) > 0 && w.UserWhims.IntN(n) == 0
}
