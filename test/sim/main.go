package sim

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// gcPercent is how much garbage a heap may collect before a collection, in percent of the memory in use. A run uses
// some megabytes, which change all the time: with Go's default of 100 %, a third of the time goes into garbage
// collection.
const gcPercent = 800

// RunTestMain is the TestMain of a package with runs. It fails if a goroutine outlives its test. It limits the tests
// to one processor: in a bubble about one goroutine runs at a time; on one processor the next one continues at once,
// on two each switch wakes the other processor, and waits where the machine is busy.
func RunTestMain(m *testing.M) {
	debug.SetGCPercent(gcPercent)
	runtime.GOMAXPROCS(1)
	log.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := recordedRequests.writeFile(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// HeapInUse returns the number of bytes of live objects. It collects garbage twice: the first collection clears
// sync.Pools, and runs finalizers.
func HeapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var is runtime.MemStats
	runtime.ReadMemStats(&is)
	return int64(is.HeapAlloc)
}
