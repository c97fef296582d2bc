//go:build linux

package netif

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// resubscribeDelay is how long after the end of a watch the next one begins.
const resubscribeDelay = time.Second

// WatchChanges calls changed whenever an interface or an address of the host has changed, until ctx ends, except for
// addresses that are refreshed as ours are. A watch that ends, as there was too much at once, begins again.
func WatchChanges(ctx context.Context, changed func()) error {
	ignored := func(error) {} // the watch ends then
	err := keepSubscribed(ctx, changed, func() (<-chan netlink.LinkUpdate, error) {
		out := make(chan netlink.LinkUpdate)
		return out, netlink.LinkSubscribeWithOptions(out, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: ignored})
	}, func(netlink.LinkUpdate) bool { return true })
	if err != nil {
		return fmt.Errorf("watching the interfaces: %w", err)
	}
	err = keepSubscribed(ctx, changed, func() (<-chan netlink.AddrUpdate, error) {
		out := make(chan netlink.AddrUpdate)
		return out, netlink.AddrSubscribeWithOptions(out, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: ignored})
	}, func(u netlink.AddrUpdate) bool { return !u.NewAddr || u.PreferedLft != 0 })
	if err != nil {
		return fmt.Errorf("watching the addresses: %w", err)
	}
	return nil
}

// keepSubscribed subscribes, again and again, and calls changed for each update that counts, and whenever an update may
// have been missed.
func keepSubscribed[U any](ctx context.Context, changed func(), subscribe func() (<-chan U, error), counts func(U) bool) error {
	updates, err := subscribe()
	if err != nil {
		return err
	}
	go func() {
		for ctx.Err() == nil {
			for u := range updates {
				if counts(u) {
					changed()
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(resubscribeDelay):
			}
			if next, err := subscribe(); err == nil {
				updates = next
			}
			changed()
		}
	}()
	return nil
}
