package poolutil

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
)

// TestParseRange compares messages, too, because users see them in conditions and act on them.
func TestParseRange(t *testing.T) {
	cases := map[string]struct {
		in, want, wantErr string
	}{
		"prefix":                {in: "10.40.0.0/21", want: "10.40.0.0-10.40.7.255"},
		"range":                 {in: "10.0.0.1-10.0.0.9", want: "10.0.0.1-10.0.0.9"},
		"range of one":          {in: "10.0.0.1-10.0.0.1", want: "10.0.0.1-10.0.0.1"},
		"address":               {in: "10.0.0.5", want: "10.0.0.5-10.0.0.5"},
		"F11: end of IPv4":      {in: "255.255.255.0-255.255.255.255", want: "255.255.255.0-255.255.255.255"},
		"F11: all of IPv4":      {in: "0.0.0.0/0", want: "0.0.0.0-255.255.255.255"},
		"IPv6 prefix":           {in: "2001:db8::/64", want: "2001:db8::-2001:db8::ffff:ffff:ffff:ffff"},
		"IPv6 range":            {in: "2001:db8::1-2001:db8::9", want: "2001:db8::1-2001:db8::9"},
		"all of IPv6":           {in: "::/0", want: "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		"host bits":             {in: "10.0.0.5/24", wantErr: `parsing "10.0.0.5/24": host bits are set: write 10.0.0.0/24 for the prefix or 10.0.0.5 for the address`},
		"host bits in IPv6":     {in: "2001:db8::5/64", wantErr: `parsing "2001:db8::5/64": host bits are set: write 2001:db8::/64 for the prefix or 2001:db8::5 for the address`},
		"backwards":             {in: "10.0.0.9-10.0.0.1", wantErr: `parsing "10.0.0.9-10.0.0.1": end 10.0.0.1 is before start 10.0.0.9`},
		"two families":          {in: "10.0.0.1-2001:db8::1", wantErr: `parsing "10.0.0.1-2001:db8::1": start is IPv4 and end is IPv6, want one family`},
		"zone":                  {in: "fe80::1%eth0", wantErr: `parsing "fe80::1%eth0": fe80::1%eth0 has a zone: write fe80::1`},
		"zone in a prefix":      {in: "fe80::%eth0/64", wantErr: `parsing "fe80::%eth0/64": fe80::%eth0 has a zone: write fe80::`},
		"4in6":                  {in: "::ffff:10.0.0.1", wantErr: `parsing "::ffff:10.0.0.1": ::ffff:10.0.0.1 is an IPv4 address written as IPv6: write 10.0.0.1`},
		"4in6 prefix":           {in: "::ffff:10.0.0.0/120", wantErr: `parsing "::ffff:10.0.0.0/120": ::ffff:10.0.0.0 is an IPv4 address written as IPv6: write 10.0.0.0`},
		"4in6 end":              {in: "::1-::ffff:10.0.0.1", wantErr: `parsing "::1-::ffff:10.0.0.1": ::ffff:10.0.0.1 is an IPv4 address written as IPv6: write 10.0.0.1`},
		"empty":                 {in: "", wantErr: `parsing "": "" is not an IP address`},
		"half a range":          {in: "10.0.0.1-", wantErr: `parsing "10.0.0.1-": "" is not an IP address`},
		"prefix length":         {in: "10.0.0.0/33", wantErr: `parsing "10.0.0.0/33": "33" is not a prefix length`},
		"no prefix length":      {in: "10.0.0.0/", wantErr: `parsing "10.0.0.0/": "" is not a prefix length`},
		"range of prefixes":     {in: "10.0.0.0/24-10.0.1.0/24", wantErr: `parsing "10.0.0.0/24-10.0.1.0/24": "24-10.0.1.0/24" is not a prefix length`},
		"white space":           {in: "10.0.0.1 - 10.0.0.9", wantErr: `parsing "10.0.0.1 - 10.0.0.9": "10.0.0.1 " is not an IP address`},
		"not an address":        {in: "pool", wantErr: `parsing "pool": "pool" is not an IP address`},
		"leading zeros (octal)": {in: "10.0.0.010", wantErr: `parsing "10.0.0.010": "10.0.0.010" is not an IP address`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r, err := ParseRange(tc.in)
			got, gotErr := "", ""
			if err != nil {
				gotErr = err.Error()
			} else {
				got = r.String()
			}
			if diff := cmp.Diff([]string{tc.want, tc.wantErr}, []string{got, gotErr}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestFormatRange checks the form of ranges (B66).
func TestFormatRange(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"aligned power of two":    {"10.0.0.0-10.0.0.255", "10.0.0.0/24"},
		"power of two, askew":     {"10.0.0.4-10.0.0.11", "10.0.0.4-10.0.0.11"},
		"aligned, no power of 2":  {"10.0.0.0-10.0.0.2", "10.0.0.0-10.0.0.2"},
		"one address":             {"10.0.0.5", "10.0.0.5/32"},
		"one IPv6 address":        {"2001:db8::5", "2001:db8::5/128"},
		"F11: last IPv4 address":  {"255.255.255.255", "255.255.255.255/32"},
		"F11: all of IPv4":        {"0.0.0.0-255.255.255.255", "0.0.0.0/0"},
		"last IPv6 address":       {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"},
		"all of IPv6":             {"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0"},
		"all of IPv6 but the end": {"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", "::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, FormatRange(rangeOf(tc.in))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// FuzzParseRange checks that a parsed range can be formatted, that the text is parsed to the same range, and that there
// is one text for each range.
func FuzzParseRange(f *testing.F) {
	for _, s := range []string{"10.40.0.0/21", "10.0.0.1-10.0.0.9", "255.255.255.255", "::/0", "2001:db8::1-2001:db8::ff", "::ffff:10.0.0.1", "1-2", "/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRange(s)
		if err != nil {
			if r.IsValid() || !strings.Contains(err.Error(), "parsing") {
				t.Fatalf("%v with %v", r, err)
			}
			return
		}
		text := FormatRange(r)
		again, err := ParseRange(text)
		if err != nil || again != r || FormatRange(again) != text {
			t.Fatalf("%q is %s, formatted %q, read as %s, %v", s, r, text, again, err)
		}
		if n := Size(r); n < 1 || r.From() == r.To() != (n == 1) {
			t.Fatalf("%s has %d addresses", r, n)
		}
	})
}

func TestRangeSize(t *testing.T) {
	cases := map[string]int64{
		"10.0.0.5":                 1,
		"10.0.0.0/8":               1 << 24,
		"0.0.0.0/0":                1 << 32, // F11
		"255.255.255.254/31":       2,       // F11
		"2001:db8::/127":           2,
		"2001:db8::/66":            1 << 62,
		"::-::7fff:ffff:ffff:fffe": math.MaxInt64,
		"::-::7fff:ffff:ffff:fffd": math.MaxInt64 - 1,
		"2001:db8::/65":            math.MaxInt64,
		"2001:db8::/64":            math.MaxInt64,
		"::/1":                     math.MaxInt64,
		"::/0":                     math.MaxInt64,
		"2001:db8::ffff:ffff:ffff:ffff-2001:db8:0:1::": 2,
	}
	for in, want := range cases {
		if got := Size(rangeOf(in)); got != want {
			t.Errorf("Size(%s) = %d, want %d", in, got, want)
		}
	}
	if got := Size(netipx.IPRange{}); got != 0 {
		t.Errorf("Size of no range = %d", got)
	}
}

func TestEnumerateAddresses(t *testing.T) {
	cases := map[string][]string{
		"10.0.0.254-10.0.1.1":                     {"10.0.0.254", "10.0.0.255", "10.0.1.0", "10.0.1.1"},
		"255.255.255.254-255.255.255.255":         {"255.255.255.254", "255.255.255.255"}, // F11
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff": {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	}
	for in, want := range cases {
		if diff := cmp.Diff(want, Enumerate(rangeOf(in))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
	if got := slices.Collect(Addresses(netipx.IPRange{})); len(got) != 0 {
		t.Errorf("no range has addresses %v", got)
	}
	for a := range Addresses(rangeOf("::/0")) { // yields addresses lazily
		if a.String() != "::" {
			t.Errorf("::/0 begins with %s", a)
		}
		break
	}
}

// TestEnumerateIsCapped checks the limit of the list (B65).
func TestEnumerateIsCapped(t *testing.T) {
	for _, in := range []string{"10.0.0.0/8", "2001:db8::/64"} {
		got := Enumerate(rangeOf(in))
		if first := rangeOf(in).From().String(); len(got) != MaxEnumerated || got[0] != first {
			t.Errorf("%s: %d addresses from %s", in, len(got), got[0])
		}
	}
	if got := len(Enumerate(rangeOf("10.0.0.0/16"))); got != 65536 {
		t.Errorf("a /16 has %d addresses", got)
	}
}

func TestUsableAddresses(t *testing.T) {
	cases := map[string]struct {
		in, want string
		size     int64
	}{
		"H16: /28":            {"10.0.0.0/28", "10.0.0.1-10.0.0.14", 14},
		"H16: /27":            {"10.0.0.0/27", "10.0.0.1-10.0.0.30", 30},
		"H16: /26":            {"10.0.0.0/26", "10.0.0.1-10.0.0.62", 62},
		"H16: /24":            {"10.0.0.0/24", "10.0.0.1-10.0.0.254", 254},
		"F11, F12: /0":        {"0.0.0.0/0", "0.0.0.1-255.255.255.254", 1<<32 - 2},
		"/30":                 {"10.0.0.4/30", "10.0.0.5-10.0.0.6", 2},
		"RFC 3021":            {"10.0.0.4/31", "10.0.0.4-10.0.0.5", 2},
		"/32":                 {"10.0.0.4/32", "10.0.0.4-10.0.0.4", 1},
		"host bits":           {"10.0.0.9/28", "10.0.0.1-10.0.0.14", 14},
		"IPv6 /64":            {"2001:db8::/64", "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff", math.MaxInt64},
		"IPv6 /126":           {"2001:db8::/126", "2001:db8::1-2001:db8::3", 3},
		"RFC 6164":            {"2001:db8::2/127", "2001:db8::2-2001:db8::3", 2},
		"IPv6 /128":           {"2001:db8::2/128", "2001:db8::2-2001:db8::2", 1},
		"F11: end of IPv4":    {"255.255.255.254/31", "255.255.255.254-255.255.255.255", 2},
		"the end of all IPv6": {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := Usable(netip.MustParsePrefix(tc.in))
			if r.String() != tc.want || Size(r) != tc.size {
				t.Errorf("%s: %s with %d addresses, want %s with %d", tc.in, r, Size(r), tc.want, tc.size)
			}
		})
	}
	if r := Usable(netip.Prefix{}); r.IsValid() {
		t.Errorf("no prefix has usable addresses %s", r)
	}
}

func TestTrimToPrefixes(t *testing.T) {
	cases := map[string]struct {
		in      []string
		bits    int
		want    []string
		wantErr bool
	}{
		"both ends are cut":      {in: []string{"10.0.0.1-10.0.2.17"}, bits: 28, want: []string{"10.0.0.16-10.0.2.15"}},
		"ends fit":               {in: []string{"10.0.0.16-10.0.0.63"}, bits: 28, want: []string{"10.0.0.16-10.0.0.63"}},
		"none inside":            {in: []string{"10.0.0.1-10.0.0.30"}, bits: 28},
		"one inside, askew":      {in: []string{"10.0.0.1-10.0.0.31"}, bits: 28, want: []string{"10.0.0.16-10.0.0.31"}},
		"too small":              {in: []string{"10.0.0.0/28"}, bits: 27},
		"parts that touch":       {in: []string{"10.0.0.0-10.0.0.7", "10.0.0.8-10.0.0.15"}, bits: 28, want: []string{"10.0.0.0-10.0.0.15"}},
		"single addresses":       {in: []string{"10.0.0.1-10.0.0.3"}, bits: 32, want: []string{"10.0.0.1-10.0.0.3"}},
		"F11: end of IPv4":       {in: []string{"255.255.255.1-255.255.255.255"}, bits: 28, want: []string{"255.255.255.16-255.255.255.255"}},
		"past the end of IPv4":   {in: []string{"255.255.255.241-255.255.255.255"}, bits: 28},
		"all of IPv4":            {in: []string{"0.0.0.0/0"}, bits: 0, want: []string{"0.0.0.0-255.255.255.255"}},
		"IPv6 /64s":              {in: []string{"2001:db8::1-2001:db8:0:3::"}, bits: 64, want: []string{"2001:db8:0:1::-2001:db8:0:2:ffff:ffff:ffff:ffff"}},
		"end of IPv6":            {in: []string{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}, bits: 126, want: []string{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff4-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}},
		"past the end of IPv6":   {in: []string{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}, bits: 124},
		"all of IPv6":            {in: []string{"::/0"}, bits: 0, want: []string{"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}},
		"nothing":                {bits: 24},
		"no such length":         {in: []string{"10.0.0.0/8"}, bits: 33, wantErr: true},
		"no such length at all":  {in: []string{"2001:db8::/64"}, bits: -1, wantErr: true},
		"no such length in IPv4": {in: []string{"10.0.0.0/8", "2001:db8::/32"}, bits: 64, wantErr: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, err := TrimToPrefixes(setOf(tc.in...), tc.bits)
			if (err != nil) != tc.wantErr {
				t.Fatalf("error %v, want one: %v", err, tc.wantErr)
			}
			var got []string
			if s != nil {
				for _, r := range s.Ranges() {
					got = append(got, r.String())
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if s, err := TrimToPrefixes(nil, 24); err != nil || len(s.Ranges()) != 0 {
		t.Errorf("no set is trimmed to %v, %v", s, err)
	}
}
