package framework

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
)

// RunTestMain is the body of a TestMain: it starts a control plane, passes it to use, runs the tests and ends the
// control plane, on an interrupt too. It returns the exit code.
//
//	func TestMain(m *testing.M) {
//		os.Exit(framework.RunTestMain(m, framework.Options{}, func(c *framework.ControlPlane) { cp = c }))
//	}
func RunTestMain(m *testing.M, opts Options, use func(*ControlPlane)) int {
	cp, err := StartControlPlane(opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// The processes are in process groups of their own: an interrupt would end the tests and leave the processes
	// running.
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		_ = cp.Stop()
		os.Exit(130)
	}()

	use(cp)
	code := m.Run()
	signal.Stop(interrupted)
	if err := cp.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
