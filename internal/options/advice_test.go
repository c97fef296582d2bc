package options

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRefusedFlagErrorsNameStepsThatHelp checks that flags that are rejected are accepted once the message is followed
// (W29).
func TestRefusedFlagErrorsNameStepsThatHelp(t *testing.T) {
	const four, six, on = "--cluster-cidr=10.244.0.0/16", "--cluster-cidr=fd00:1::/48", "--node-cidrs=on"
	const both = "--cluster-cidr=10.244.0.0/16,fd00:1::/48"
	for name, c := range map[string]struct {
		args      []string
		wantError string
		do        [][]string // each of them is an alternative
	}{
		"Nodes in a namespace": {[]string{on, "--namespace=a"}, "leave --namespace out, or give them with another manager", [][]string{{on}, {"--namespace=a"}}},
		"an address":           {[]string{"--diagnostics-address=9440"}, "write host:port, or :port for every address of this machine; 0 turns it off", [][]string{{"--diagnostics-address=localhost:9440"}, {"--diagnostics-address=:9440"}, {"--diagnostics-address=0"}}},
		"a CIDR for no Node":   {[]string{four, "--node-cidrs=fleet"}, "set that to on, own or only, or write a ClusterCIDR with a clusterSelector", [][]string{{four, on}, {four, "--node-cidrs=own"}, {four, "--node-cidrs=only"}, {"--node-cidrs=fleet"}}},
		"objects for no Node":  {[]string{"--serve-node-ipam-cluster-cidrs", "--node-cidrs=off"}, "set that to on, own or only", [][]string{{"--serve-node-ipam-cluster-cidrs", on}, {"--serve-node-ipam-cluster-cidrs", "--node-cidrs=own"}, {"--serve-node-ipam-cluster-cidrs", "--node-cidrs=only"}}},
		"two of a family":      {[]string{on, "--cluster-cidr=10.1.0.0/16,10.2.0.0/16"}, "write a ClusterCIDR for each further one", [][]string{{on, "--cluster-cidr=10.1.0.0/16"}}},
		"one size for both":    {[]string{on, both, "--node-cidr-mask-size=24"}, "use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6", [][]string{{on, both, "--node-cidr-mask-size-ipv4=24", "--node-cidr-mask-size-ipv6=64"}}},
		"two sizes":            {[]string{on, four, "--node-cidr-mask-size=24", "--node-cidr-mask-size-ipv4=24"}, "set either it, or the one of the family", [][]string{{on, four, "--node-cidr-mask-size=24"}, {on, four, "--node-cidr-mask-size-ipv4=24"}}},
		"a size of IPv6":       {[]string{on, four, "--node-cidr-mask-size-ipv6=64"}, "set --node-cidr-mask-size-ipv4", [][]string{{on, four, "--node-cidr-mask-size-ipv4=24"}}},
		"a size of IPv4":       {[]string{on, six, "--node-cidr-mask-size-ipv4=24"}, "set --node-cidr-mask-size-ipv6", [][]string{{on, six, "--node-cidr-mask-size-ipv6=64"}}},
		"a small one":          {[]string{on, "--cluster-cidr=10.244.0.0/25"}, "make it larger, or set --node-cidr-mask-size-ipv4", [][]string{{on, "--cluster-cidr=10.244.0.0/24"}, {on, "--cluster-cidr=10.244.0.0/25", "--node-cidr-mask-size-ipv4=26"}}},
	} {
		if err := parse(t, c.args...).Validate(); err == nil || !strings.Contains(err.Error(), c.wantError) {
			t.Errorf("%s: %v", name, err)
		}
		for _, args := range c.do {
			if err := parse(t, args...).Validate(); err != nil {
				t.Errorf("%s: %q: %v", name, args, err)
			}
		}
	}
}

// TestMountedCertificateIsServed checks that a certificate that is mounted is served (W29).
func TestMountedCertificateIsServed(t *testing.T) {
	o := &Options{WebhookPort: 9443, WebhookCertDir: t.TempDir()}
	if err := o.ValidateCertificate(); err == nil || !strings.Contains(err.Error(), "mount the certificate there, or turn the webhooks off with --webhook-port=0") {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		name, kind string
		bytes      []byte
	}{{"tls.crt", "CERTIFICATE", cert}, {"tls.key", "PRIVATE KEY", private}} {
		if err := os.WriteFile(filepath.Join(o.WebhookCertDir, f.name), pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.ValidateCertificate(); err != nil {
		t.Error(err)
	}
	if o.WebhookCertDir, o.WebhookPort = t.TempDir(), 0; o.ValidateCertificate() != nil {
		t.Error("the webhooks are off")
	}
}
