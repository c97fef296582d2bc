package agent

// logOnChange logs an error once, and once more when it is over.
func (a *Agent) logOnChange(activity string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch old := a.loggedErrors[activity]; {
	case old == text:
		return
	case err != nil:
		a.Log.Error(err, "Encountered an error", "activity", activity)
	case old != "":
		a.Log.Info("Recovered from an error", "activity", activity)
	}
	a.loggedErrors[activity] = text
}
