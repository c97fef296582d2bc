package integration

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

func traceH4(ctx context.Context, m *framework.Manager) {
	if os.Getenv("H4") == "" {
		return
	}
	last, _ := m.Toll(ctx)
	for range 15 {
		time.Sleep(time.Second)
		now, _ := m.Toll(ctx)
		fmt.Println("H4", now.Since(last))
		last = now
	}
}
