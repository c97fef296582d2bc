package poolutil

import "go4.org/netipx"

// FormatRange formats r in the shortest form that ParseRange parses: as a prefix if r is exactly one (a single address
// is a /32 or a /128), else as "first-last". Equal ranges give equal texts.
func FormatRange(r netipx.IPRange) string {
	if p, ok := r.Prefix(); ok {
		return p.String()
	}
	return r.From().String() + "-" + r.To().String()
}

// ShowRange formats r for users: as FormatRange does, but a single address without a prefix length.
func ShowRange(r netipx.IPRange) string {
	if r.From() == r.To() {
		return r.From().String()
	}
	return FormatRange(r)
}
