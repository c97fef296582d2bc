//go:build linux

package framework

import (
	"context"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/netns"
)

// Host is a network namespace on a switch, with butler-host-lb in it.
type Host struct {
	*netns.Space
	*process

	// Relay is its way to the API server.
	Relay *netns.Relay
	// LogFile is what its programs have written.
	LogFile string

	binary, kubeconfig string
}

// JoinHost gives a namespace a way to the API server, and the rights of a kubeconfig (HostKubeconfig). Its program does not run
// yet.
func (c *ControlPlane) JoinHost(ctx context.Context, s *netns.Space, binary string, kubeconfig []byte) (*Host, error) {
	dir, err := os.MkdirTemp(c.Dir, s.Name+"-")
	if err != nil {
		return nil, err
	}
	h := &Host{Space: s, binary: binary, LogFile: filepath.Join(dir, "host.log"), kubeconfig: filepath.Join(dir, "kubeconfig")}
	target := c.Config.Host
	if at, err := url.Parse(target); err == nil && at.Host != "" {
		target = at.Host
	}
	if h.Relay, err = s.Relay(context.WithoutCancel(ctx), target); err != nil {
		return nil, err
	}
	cfg, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, err
	}
	for _, cluster := range cfg.Clusters {
		cluster.Server = "https://" + h.Relay.Address
	}
	return h, clientcmd.WriteToFile(*cfg, h.kubeconfig)
}

// Launch starts the program. It lives until Stop or Kill.
func (h *Host) Launch(args ...string) (err error) {
	h.process, err = startIn(h.Start, h.LogFile, make(chan struct{}), nil, h.binary, append([]string{"--kubeconfig=" + h.kubeconfig}, args...)...)
	return err
}

// Log is all that its programs have written so far.
func (h *Host) Log() string {
	text, err := os.ReadFile(h.LogFile)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// Lock is what the lock of an address says that is in no named network, and who holds it; nobody, if there is none.
func Lock(ctx context.Context, c client.Client, a netip.Addr) (record.Lock, string, error) {
	o := &coordinationv1.Lease{}
	err := c.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.LockName(a, "")}, o)
	if err != nil {
		return record.Lock{}, "", client.IgnoreNotFound(err)
	}
	return record.LockOf(o)
}
