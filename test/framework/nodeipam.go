package framework

import (
	"path/filepath"
	"strconv"
)

// NodeIPAM is a kube-controller-manager that runs only the controller that sets the pod CIDRs of Nodes.
type NodeIPAM struct{ *process }

// StartNodeIPAM starts a kube-controller-manager that gives Nodes prefixes of the given length out of a CIDR, without
// the default limit of 20 requests a second. The caller ends it with Kill, before the control plane.
func (c *ControlPlane) StartNodeIPAM(clusterCIDR string, length int) (*NodeIPAM, error) {
	p, err := c.startControllerManager(filepath.Join(c.Dir, "nodeipam"),
		"--controllers=node-ipam-controller", "--allocate-node-cidrs", "--cluster-cidr="+clusterCIDR,
		"--node-cidr-mask-size="+strconv.Itoa(length), "--kube-api-qps=100000", "--kube-api-burst=100000")
	if err != nil {
		return nil, err
	}
	return &NodeIPAM{p}, nil
}
