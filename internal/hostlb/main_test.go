package hostlb

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

func TestMain(m *testing.M) { sim.RunTestMain(m) }
