package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
)

// NodeIPAM is a kube-controller-manager that runs only the controller that sets the pod CIDRs of Nodes.
type NodeIPAM struct {
	*process
	metricsURL string
	certDir    string
}

// StartNodeIPAM starts a kube-controller-manager that gives Nodes prefixes of the given length out of a CIDR, without
// the default limit of 20 requests a second. The caller ends it with Kill, before the control plane.
func (c *ControlPlane) StartNodeIPAM(clusterCIDR string, length int) (*NodeIPAM, error) {
	certs := filepath.Join(c.Dir, "nodeipam")
	p, port, err := c.startControllerManager(certs,
		"--controllers=node-ipam-controller", "--allocate-node-cidrs", "--cluster-cidr="+clusterCIDR,
		"--node-cidr-mask-size="+strconv.Itoa(length),
		"--kube-api-qps=100000", "--kube-api-burst=100000", "--authorization-always-allow-paths=/healthz,/metrics")
	if err != nil {
		return nil, err
	}
	return &NodeIPAM{process: p, metricsURL: "https://" + loopbackAddress(port) + "/metrics", certDir: certs}, nil
}

// ReadProgress returns how many objects the controller has patched (it patches the CIDRs of each Node once), and how
// many seconds of CPU it has used.
func (n *NodeIPAM) ReadProgress(ctx context.Context) (patched, cpu float64, err error) {
	text, err := n.readMetrics(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("reading the metrics of kube-controller-manager: %w", err)
	}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, labels, _ := strings.Cut(series, "{")
		isPatch := name == "rest_client_requests_total" && strings.Contains(labels, `method="PATCH"`)
		if name != "process_cpu_seconds_total" && (!isPatch || !strings.Contains(labels, `code="200"`)) {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, 0, err
		}
		if isPatch {
			patched += number
		} else {
			cpu = number
		}
	}
	return patched, cpu, nil
}

func (n *NodeIPAM) readMetrics(ctx context.Context) (string, error) {
	secure := &rest.Config{}
	secure.CAFile = filepath.Join(n.certDir, "kube-controller-manager.crt") // created by the process when it starts
	client, err := rest.HTTPClientFor(secure)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.metricsURL, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(resp.Status)
	}
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}
