package lease

import (
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

func TestMain(m *testing.M) { schedule.RunTestMain(m) }
