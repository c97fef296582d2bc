package schedule

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

// Digester has a hash of what was asked of it: faults.Server.
type Digester interface{ Digest() []byte }

var requestsFile = flag.String("requests", "", "write to this file what each run asked of the API server, as hashes")

// digestLength is how many bytes of a hash are kept: of 27,000 runs that differ, less than one is taken for equal.
const digestLength = 2

// unlike stands for a run that does not ask the same each time.
var unlike = strings.Repeat("--", digestLength)

// requests is what each run has asked, by the name of its test.
type requests struct {
	mu     sync.Mutex
	hashes map[string]string
}

var recorded = requests{hashes: map[string]string{}}

// record keeps what a run has asked. With -count=2 it finds those that do not ask the same each time.
func (r *requests) record(name string, asked ...Digester) {
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
		hash = unlike
	}
	r.hashes[name] = hash
}

// write writes a line for each scenario: how many runs there were of it, and a hash of each in the order of their names.
func (r *requests) write() error {
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
