package sim

import (
	"os"
	"path/filepath"
	"testing"
)

type fixed []byte

func (f fixed) Digest() []byte { return f }

// A line holds the hashes of the runs of a scenario, in the order of their names; a run that does not send the same
// requests each time has no hash.
func TestRequestsAreRecorded(t *testing.T) {
	was := *requestsFile
	defer func() { *requestsFile = was }()
	*requestsFile = filepath.Join(t.TempDir(), "requests.txt")
	r := requestLog{hashes: map[string]string{}}
	for _, run := range []struct {
		name string
		hash fixed
	}{
		{"TestFaultsAtEveryWrite/burst/crash-2", fixed{1, 2, 3}},
		{"TestFaultsAtEveryWrite/burst/crash-1", fixed{4, 5, 6}},
		{"TestFaultsAtEveryWrite/burst/crash-2", fixed{1, 2, 3}},
		{"TestFaultsAtEveryWrite/burst/crash-1", fixed{4, 5, 7}},
		{"TestRestartAtEveryWrite", fixed{8, 9}},
	} {
		r.recordRun(run.name, run.hash)
	}
	if err := r.writeFile(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(*requestsFile)
	if want := "TestFaultsAtEveryWrite/burst 2 ---- 0102\nTestRestartAtEveryWrite 1 0809\n"; err != nil || string(got) != want {
		t.Errorf("%v, %q, want %q", err, got, want)
	}
}
