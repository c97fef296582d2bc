package grants

import (
	"strings"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// HandsOutPrefixes reports whether the pool hands out prefixes instead of addresses.
func (m *Memory) HandsOutPrefixes() bool {
	if m.Layout.Is6() {
		return m.Layout.UnitBits() < 128
	}
	return m.Layout.UnitBits() < 32
}

// RecordOf is the text of a record: an address, or a prefix where the pool hands out prefixes.
func (m *Memory) RecordOf(r netipx.IPRange) string {
	if m.Layout != nil && m.Layout.UnitBits() < r.From().BitLen() {
		return poolutil.FormatRange(r)
	}
	return r.From().String()
}

// ParseRecord reads an address or a prefix.
func ParseRecord(s string) (netipx.IPRange, bool) {
	if s == "" || strings.Contains(s, "-") {
		return netipx.IPRange{}, false
	}
	r, err := poolutil.ParseRange(s)
	return r, err == nil
}
