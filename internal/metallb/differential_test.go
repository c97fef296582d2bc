package metallb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// oracleMain is a program with copies of MetalLB's own functions that parse the addresses of a pool and count them,
// from the pinned version. They are copied because MetalLB's packages are internal to its module; they depend on
// little else.
const oracleMain = `
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"strings"

	"oracle/ipaddr"
)

// Pool is what the functions need of MetalLB's type.
type Pool struct {
	CIDR          []*net.IPNet
	AvoidBuggyIPs bool
}

func main() {
	var pools []struct {
		Addresses     []string
		AvoidBuggyIPs bool
	}
	if err := json.NewDecoder(os.Stdin).Decode(&pools); err != nil {
		panic(err)
	}
	type answer struct {
		Refused    bool
		Has        []string
		IPv4, IPv6 int64
	}
	var out []answer
	for _, in := range pools {
		p, a := &Pool{AvoidBuggyIPs: in.AvoidBuggyIPs}, answer{}
		for _, text := range in.Addresses {
			nets, err := ParseCIDR(text)
			a.Refused = a.Refused || err != nil
			p.CIDR = append(p.CIDR, nets...)
		}
		for _, n := range p.CIDR {
			c := ipaddr.NewCursor([]ipaddr.Prefix{*ipaddr.NewPrefix(copyCIDR(n))})
			a.Has = append(a.Has, c.First().IP.String()+"-"+c.Last().IP.String())
		}
		_, a.IPv4, a.IPv6 = poolCount(p)
		out = append(out, a)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		panic(err)
	}
}
`

// oraclePool is a pool for MetalLB's code to read; oracleAnswer is the result.
type oraclePool struct {
	Addresses     []string
	AvoidBuggyIPs bool
}

type oracleAnswer struct {
	Refused    bool
	Has        []string
	IPv4, IPv6 int64
}

// runMetalLBOracle runs MetalLB's own code to parse pools and count their addresses.
func runMetalLBOracle(t *testing.T, pools []oraclePool) (out []oracleAnswer) {
	t.Helper()
	root, err := framework.FindRepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	module := func(name string) string {
		dir, err := framework.FindModuleDir(t.Context(), filepath.Join(root, "hack", "tools", "metallb"), name)
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir, metal, ipaddr := t.TempDir(), module("go.universe.tf/metallb"), module("github.com/mikioh/ipaddr")
	program := oracleMain +
		functions(t, filepath.Join(metal, "internal", "config", "config.go"), "ParseCIDR") +
		functions(t, filepath.Join(metal, "internal", "allocator", "allocator.go"), "poolCount", "ipConfusesBuggyFirmwares", "copyCIDR")
	write(t, filepath.Join(dir, "main.go"), strings.ReplaceAll(program, "*config.Pool", "*Pool"))
	write(t, filepath.Join(dir, "go.mod"), "module oracle\n\ngo 1.24\n")
	sources, err := filepath.Glob(filepath.Join(ipaddr, "*.go"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources in %s: %v", ipaddr, err)
	}
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(source, "_test.go") {
			write(t, filepath.Join(dir, "ipaddr", filepath.Base(source)), string(text))
		}
	}
	in, err := json.Marshal(pools)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", ".")
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, bytes.NewReader(in), os.Stderr
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	answer, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// functions returns the sources of functions of a file.
func functions(t *testing.T, path string, names ...string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && slices.Contains(names, f.Name.Name) {
			out.Write(text[set.Position(f.Pos()).Offset:set.Position(f.End()).Offset])
			out.WriteString("\n\n")
		}
	}
	return out.String()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// drawEntry returns an entry of spec.addresses, in the forms that people write and in some that MetalLB refuses.
func drawEntry(r *rand.Rand) string {
	four := func() string {
		return fmt.Sprintf("10.0.%d.%d", r.IntN(3), []int{0, 1, 7, 128, 254, 255, r.IntN(256)}[r.IntN(7)])
	}
	six := func() string {
		return []string{"fd00::%x", "FD00::%X", "fd00:0:0::%04x", "fd00::1:%x"}[r.IntN(4)]
	}
	addr := func() string {
		if r.IntN(4) == 0 {
			return fmt.Sprintf(six(), r.IntN(70000))
		}
		if r.IntN(12) == 0 {
			return "::ffff:" + four()
		}
		return four()
	}
	space := func() string { return []string{"", "", "", " ", "\t", "  "}[r.IntN(6)] }
	switch r.IntN(10) {
	case 0, 1, 2:
		bits := []int{32, 31, 30, 28, 25, 24, 23, 20, 16, 8, 0, 33}[r.IntN(12)]
		return fmt.Sprintf("%s/%d", four(), bits)
	case 3:
		return fmt.Sprintf(six(), r.IntN(70000)) + fmt.Sprintf("/%d", []int{128, 127, 120, 112, 66, 65, 64, 48, 0}[r.IntN(9)])
	case 4:
		return fmt.Sprintf("::ffff:%s/%d", four(), []int{128, 120, 112, 96, 90}[r.IntN(5)])
	case 5:
		return []string{
			"", "-", "10.0.0.1", " 10.0.0.0/24", "10.0.0.0/24 ", "10.0.0.0/024", "10.0.0.01-10.0.0.5", "fe80::1%eth0-fe80::2%eth0", "fe80::1%eth0/64",
			"10.0.0.1-10.0.0.2-10.0.0.3", "10.0.0.9-10.0.0.1", "10.0.0.1-fd00::1", "fd00::1-10.0.0.1", "::/0", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
			"0.0.0.0-255.255.255.255", "fd00::-fd00::ffff:ffff:ffff:ffff", "64:ff9b::10.0.0.1/96", "::ffff:a00:1/120", "::ffff:a00:1-::ffff:a00:9",
		}[r.IntN(20)]
	}
	return space() + addr() + space() + "-" + space() + addr() + space()
}

// TestRangesAndCountsMatchMetalLB checks that this package parses the entries of spec.addresses that MetalLB parses,
// and counts as many addresses, except for entries that mix IP families, for which MetalLB returns no addresses, or
// wrong ones.
func TestRangesAndCountsMatchMetalLB(t *testing.T) { // B37 (what is on its way is subtracted)
	r := rand.New(rand.NewPCG(1, 2))
	var pools []oraclePool
	for range 6000 {
		p := oraclePool{AvoidBuggyIPs: r.IntN(2) == 0}
		for range []int{1, 1, 2, 3}[r.IntN(4)] {
			p.Addresses = append(p.Addresses, drawEntry(r))
		}
		pools = append(pools, p)
	}
	read := 0
	for i, want := range runMetalLBOracle(t, pools) {
		p := pools[i]
		var builder netipx.IPSetBuilder
		odd := slices.ContainsFunc(p.Addresses, mixesFamilies)
		refused := false
		for _, text := range p.Addresses {
			got, err := parseRange(text)
			refused = refused || err != nil
			builder.AddRange(got)
		}
		if refused != (want.Refused || odd) {
			t.Errorf("%q: refused=%t, and MetalLB refuses=%t", p.Addresses, refused, want.Refused)
		}
		if refused || want.Refused {
			continue
		}
		read++
		var metals netipx.IPSetBuilder
		for _, text := range want.Has {
			from, to, _ := strings.Cut(text, "-")
			metals.AddRange(netipx.MustParseIPRange(from + "-" + to))
		}
		ours, _ := builder.IPSet()
		fromMetalLB, _ := metals.IPSet()
		if !ours.Equal(fromMetalLB) {
			t.Errorf("%q: read as %v, and by MetalLB as %v", p.Addresses, ours.Ranges(), fromMetalLB.Ranges())
		}
		if n, ok := expectedCount(p.Addresses, p.AvoidBuggyIPs); !ok || n != (familyCounts{want.IPv4, want.IPv6}) {
			t.Errorf("%q, avoidBuggyIPs=%t: counted %v, and by MetalLB %d and %d", p.Addresses, p.AvoidBuggyIPs, n, want.IPv4, want.IPv6)
		}
	}
	if read < len(pools)/4 {
		t.Errorf("only %d of %d pools can be read", read, len(pools))
	}
}

// mixesFamilies reports whether an entry begins in IPv4 and ends in IPv6, or is an IPv4 network that is written as
// IPv6.
func mixesFamilies(text string) bool {
	if ip, _, err := net.ParseCIDR(text); err == nil {
		return ip.To4() != nil && strings.Contains(text, ":")
	}
	from, to, ok := strings.Cut(strings.ReplaceAll(strings.ReplaceAll(text, " ", ""), "\t", ""), "-")
	four := func(a string) bool { return strings.Contains(a, ".") }
	return ok && four(from) && !four(to) && strings.Contains(to, ":")
}
