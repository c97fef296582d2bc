package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// nodeCIDR returns the CIDR that the bare client gives to Node i.
func nodeCIDR(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 128+i/256, i%256) }

// podCIDRPatch returns the write of the manager: the CIDRs, and the ClusterCIDR that they are of.
func podCIDRPatch(cidr string) client.Patch {
	return mergePatch(map[string]any{
		"metadata": map[string]any{annotationsField: map[string]string{v1alpha1.ClusterCIDRAnnotation: poolName}},
		"spec":     map[string]any{"podCIDR": cidr, "podCIDRs": []string{cidr}},
	})
}

// newNode returns a Node as a kubelet and Cluster API create it: the exact values matter little, the size of the
// object does.
func newNode(name string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
		corev1.LabelInstanceTypeStable: "m6i.2xlarge", "beta.kubernetes.io/instance-type": "m6i.2xlarge",
		corev1.LabelTopologyZone: "region-1a", corev1.LabelTopologyRegion: "region-1",
		"topology.ebs.csi.aws.com/zone": "region-1a",
		"node.cluster.x-k8s.io/pool":    "workers", "node-role.kubernetes.io/worker": "",
		"example.com/team": "platform", "example.com/environment": "production", "example.com/cost-center": "4711",
	}, Annotations: map[string]string{
		"cluster.x-k8s.io/cluster-name": "production", "cluster.x-k8s.io/cluster-namespace": "fleet",
		"cluster.x-k8s.io/machine": "production-workers-x7k2p-" + name, "cluster.x-k8s.io/owner-kind": "MachineSet",
		"cluster.x-k8s.io/owner-name": "production-workers-x7k2p", "node.alpha.kubernetes.io/ttl": "0",
	}}}
	n.Spec.ProviderID = "aws:///region-1a/i-0123456789" + name
	n.Status = newNodeStatus(name)
	return n
}

func newNodeStatus(name string) corev1.NodeStatus {
	size := corev1.ResourceList{}
	for kind, text := range map[corev1.ResourceName]string{
		corev1.ResourceCPU: "8", corev1.ResourceMemory: "32Gi", corev1.ResourcePods: "110",
		corev1.ResourceEphemeralStorage: "100Gi", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
	} {
		size[kind] = resource.MustParse(text)
	}
	s := corev1.NodeStatus{
		Capacity: size, Allocatable: size, Conditions: newNodeConditions(metav1.Now()),
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.168.1.1"}, {Type: corev1.NodeHostName, Address: name},
			{Type: corev1.NodeInternalDNS, Address: name + ".region-1.compute.internal"},
		},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID:  "ec2d0c7d9f0e4b0f8f4d6b2a1c3e5f70",
			SystemUUID: "ec2d0c7d-9f0e-4b0f-8f4d-6b2a1c3e5f70", BootID: "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
			KernelVersion: "6.8.0-1029-aws", OSImage: "Ubuntu 24.04.3 LTS", ContainerRuntimeVersion: "containerd://2.1.4",
			KubeletVersion: "v1.36.3", OperatingSystem: "linux", Architecture: "amd64",
		},
	}
	for i := range 20 {
		repository := fmt.Sprintf("registry.example.com/platform/component-%02d", i)
		s.Images = append(s.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("%s@sha256:%064x", repository, i), repository + ":v1.2.3"},
			SizeBytes: int64(40e6 + i),
		})
	}
	return s
}

// newNodeConditions returns the conditions of a healthy Node.
func newNodeConditions(now metav1.Time) (out []corev1.NodeCondition) {
	for _, c := range []struct {
		kind            corev1.NodeConditionType
		status          corev1.ConditionStatus
		reason, message string
	}{
		{corev1.NodeMemoryPressure, "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"},
		{corev1.NodeDiskPressure, "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"},
		{corev1.NodePIDPressure, "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"},
		{corev1.NodeReady, "True", "KubeletReady", "kubelet is posting ready status"},
	} {
		out = append(out, corev1.NodeCondition{
			Type: c.kind, Status: c.status, Reason: c.reason, Message: c.message,
			LastHeartbeatTime: now, LastTransitionTime: now,
		})
	}
	return out
}
