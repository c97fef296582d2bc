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

// Host is a network namespace on a switch in which butler-host-lb runs.
type Host struct {
	*netns.Namespace
	*process

	// Relay connects the namespace to the API server.
	Relay *netns.Relay
	// LogFile is the path of the output of the programs.
	LogFile string

	binary, kubeconfig string
}

// JoinHost connects a namespace to the API server, with the rights of a kubeconfig (HostKubeconfig). It does not
// start the program yet.
func (c *ControlPlane) JoinHost(ctx context.Context, s *netns.Namespace, binary string, kubeconfig []byte) (*Host, error) {
	dir, err := os.MkdirTemp(c.Dir, s.Name+"-")
	if err != nil {
		return nil, err
	}
	h := &Host{Namespace: s, binary: binary, LogFile: filepath.Join(dir, "host.log"), kubeconfig: filepath.Join(dir, "kubeconfig")}
	target := c.Config.Host
	if at, err := url.Parse(target); err == nil && at.Host != "" {
		target = at.Host
	}
	if h.Relay, err = s.OpenRelay(context.WithoutCancel(ctx), target); err != nil {
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

// LaunchProgram starts the program. It runs until Stop or Kill.
func (h *Host) LaunchProgram(args ...string) (err error) {
	h.process, err = startProcessWith(h.StartProcess, h.LogFile, make(chan struct{}), nil, h.binary, append([]string{"--kubeconfig=" + h.kubeconfig}, args...)...)
	return err
}

// ReadLog returns all that the programs have written so far.
func (h *Host) ReadLog() string {
	text, err := os.ReadFile(h.LogFile)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// ReadAddressLock returns the record in the lock of an address without a named network, and the holder of the lock;
// both are empty if there is no lock.
func ReadAddressLock(ctx context.Context, c client.Client, a netip.Addr) (record.Lock, string, error) {
	o := &coordinationv1.Lease{}
	err := c.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.LockName(a, "")}, o)
	if err != nil {
		return record.Lock{}, "", client.IgnoreNotFound(err)
	}
	return record.ParseLock(o)
}
