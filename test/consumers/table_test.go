package consumers

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

func infrastructure(version, kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: version, Kind: kind}
}

// consumers are the providers whose source was read; docs/consumers.md has the consequences for their users.
var consumers = []consumer{{
	name:      "CAPV",
	owner:     infrastructure("v1beta2", "VSphereVM"),
	refer:     newPlainReference,
	claimName: func(machine string, n int, _ string) string { return fmt.Sprintf("%s-0-%d", machine, n) },
	// The label of the VSphereVM, or the empty string that a map returns for a missing key.
	labels: func(m *machine) map[string]string {
		return map[string]string{clusterv1.ClusterNameLabel: m.clusterLabel[clusterv1.ClusterNameLabel]}
	},
	finalizer: "vspherevm.infrastructure.cluster.x-k8s.io/ip-claim-protection",
	writes:    v1beta2, reads: v1beta2, write: createOrPatch,
	between: []schema.GroupVersionKind{infrastructure("v1beta2", "VSphereMachine")},
}, {
	// Until v1.15; the provider of SCVMM does the same and requires a gateway.
	name:      "CAPV of v1beta1",
	owner:     infrastructure("v1beta2", "VSphereVM"),
	refer:     newPlainReference,
	claimName: func(machine string, n int, _ string) string { return fmt.Sprintf("%s-0-%d", machine, n) },
	labels: func(m *machine) map[string]string {
		return map[string]string{clusterv1.ClusterNameLabel: m.clusterLabel[clusterv1.ClusterNameLabel]}
	},
	finalizer: "vspherevm.infrastructure.cluster.x-k8s.io/ip-claim-protection",
	writes:    v1beta1, reads: v1beta1, write: createOrPatch,
	wantsGateway: true,
}, {
	name:      "CAPM3",
	owner:     infrastructure("v1beta2", "Metal3Data"),
	refer:     newUnblockingReference,
	claimName: func(machine string, _ int, pool string) string { return machine + "-" + pool },
	labels:    func(m *machine) map[string]string { return m.clusterLabel },
	finalizer: "metal3data.infrastructure.cluster.x-k8s.io",
	writes:    v1beta2, reads: v1beta1, write: createOnce,
	deletes: true, byPool: true,
	// A Metal3Data has three owners: its template, its claim, and the Metal3Machine, which owns the claim.
	between: []schema.GroupVersionKind{infrastructure("v1beta2", "Metal3DataClaim"), infrastructure("v1beta2", "Metal3Machine")},
}, {
	// Its schema accepts no pools but those of the in-cluster provider's kinds. The manager serves what it writes and
	// reads nevertheless.
	name:      "CAPMOX",
	owner:     infrastructure("v1alpha2", "ProxmoxMachine"),
	refer:     controller,
	claimName: func(machine string, n int, _ string) string { return fmt.Sprintf("%s-net0-%02d-inet", machine, n) },
	labels:    func(m *machine) map[string]string { return m.clusterLabel },
	annotations: map[string]string{
		"ipam.capmox.cluster.x-k8s.io/proxmox-pool-offset":     "0",
		"ipam.capmox.cluster.x-k8s.io/proxmox-default-gateway": "true",
	},
	writes: v1beta2, reads: v1beta2, write: createOnce,
	usesName: true, // until v0.7
}, {
	name:      "CAPO",
	owner:     infrastructure("v1alpha1", "OpenStackServer"),
	refer:     newPlainReference,
	claimName: func(machine string, _ int, _ string) string { return machine + "-floating-ip-address" },
	labels: func(m *machine) map[string]string {
		if m.clusterLabel[clusterv1.ClusterNameLabel] == "" {
			return map[string]string{}
		}
		return m.clusterLabel
	},
	finalizer: "openstackmachine.infrastructure.cluster.x-k8s.io/ip-claim",
	writes:    v1beta2, reads: v1beta2, write: createOnce,
	onePool: true,
	between: []schema.GroupVersionKind{infrastructure("v1beta1", "OpenStackMachine")},
}, {
	name:      "OpenShift's machine API",
	owner:     schema.GroupVersionKind{Group: "machine.openshift.io", Version: "v1beta1", Kind: "Machine"},
	refer:     controller,
	claimName: func(machine string, n int, _ string) string { return fmt.Sprintf("%s-claim-0-%d", machine, n) },
	finalizer: "machine.openshift.io/ip-claim-protection",
	writes:    v1beta1, reads: v1beta1, write: createOnce,
}, {
	name:      "ironcore",
	owner:     schema.GroupVersionKind{Group: "metal.ironcore.dev", Version: "v1alpha1", Kind: "ServerClaim"},
	refer:     newPlainReference,
	claimName: func(machine string, n int, _ string) string { return fmt.Sprintf("%s-net%d", machine, n) },
	labels: func(m *machine) map[string]string {
		return map[string]string{"metal.ironcore.dev/server-claim-name": m.name, "metal.ironcore.dev/server-claim-namespace": m.namespace}
	},
	writes: v1beta1, reads: v1beta1, write: apply,
}, {
	// As in early versions of ironcore: its claims have no owner, so they must be deleted explicitly.
	name:      "ironcore without owners",
	claimName: func(machine string, n int, _ string) string { return fmt.Sprintf("%s-net%d", machine, n) },
	writes:    v1beta1, reads: v1beta1, write: createOnce,
	deletes: true, usesName: true,
}}

// named returns the consumer with the given name.
func named(name string) *consumer {
	for i := range consumers {
		if consumers[i].name == name {
			return &consumers[i]
		}
	}
	panic("no consumer is called " + name)
}
