// Command kubectl-butler_ipam is the kubectl plugin: kubectl butler-ipam.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, os.Args[1:], cli.EnvFromProcess())
	stop()
	os.Exit(code)
}
