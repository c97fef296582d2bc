package sim

import (
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
)

// Digester returns a hash of the requests that it has received; faults.Server implements it.
type Digester interface{ Digest() []byte }

var requestsFile = flag.String("requests", "", "write to this file what each run asked of the API server, as hashes")

// digestLength is the number of bytes of a hash that are kept: of 27,000 runs that differ, less than one is expected
// to have an equal hash.
const digestLength = 2

// unstableHash replaces the hash of a run that does not send the same requests each time.
var unstableHash = strings.Repeat("--", digestLength)

// requestLog has a hash of the requests of each run, by the name of its test.
type requestLog struct {
	mu     sync.Mutex
	hashes map[string]string
}

var recordedRequests = requestLog{hashes: map[string]string{}}

// recordRun records the requests of a run. With -count=2 it detects runs that do not send the same requests each
// time.
func (r *requestLog) recordRun(name string, asked ...Digester) {
	if *requestsFile == "" {
		return
	}
	hash := ""
	for _, d := range asked {
		hash += hex.EncodeToString(d.Digest())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, known := r.hashes[name]; known && was != hash {
		hash = unstableHash
	}
	r.hashes[name] = hash
}

// writeFile writes a line for each scenario: the number of its runs, and a hash of each run in the order of their
// names.
func (r *requestLog) writeFile() error {
	if *requestsFile == "" || len(r.hashes) == 0 {
		return nil
	}
	lines := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(r.hashes)) {
		scenario, hash := name, r.hashes[name]
		if parts := strings.SplitN(name, "/", 3); len(parts) > 2 {
			scenario = parts[0] + "/" + parts[1]
		}
		lines[scenario] = append(lines[scenario], hash[:2*digestLength])
	}
	var out strings.Builder
	for _, scenario := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintln(&out, scenario, len(lines[scenario]), strings.Join(lines[scenario], " "))
	}
	return os.WriteFile(*requestsFile, []byte(out.String()), 0o644)
}
