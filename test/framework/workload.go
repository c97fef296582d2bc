package framework

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CreateCluster registers a workload control plane in a management cluster as Cluster API would: it creates a Cluster
// with the name, namespace, labels and annotations of about, then the Secret with its kubeconfig, and last sets a
// status that marks the control plane as initialized. Cluster API does not run, so nothing else changes these
// objects.
func CreateCluster(ctx context.Context, management client.Client, workload *ControlPlane, about metav1.ObjectMeta) (*clusterv1.Cluster, error) {
	credentials, err := os.ReadFile(workload.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the workload cluster: %w", err)
	}
	return CreateClusterWithKubeconfig(ctx, management, credentials, about)
}

// CreateClusterWithKubeconfig is CreateCluster for a workload cluster that is known by its kubeconfig alone.
func CreateClusterWithKubeconfig(ctx context.Context, management client.Client, credentials []byte, about metav1.ObjectMeta) (*clusterv1.Cluster, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(credentials)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the workload cluster: %w", err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the address of the workload cluster: %w", err)
	}
	port, err := strconv.ParseInt(server.Port(), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("reading the port of the workload cluster: %w", err)
	}
	cluster := &clusterv1.Cluster{
		ObjectMeta: about,
		Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: server.Hostname(), Port: int32(port)},
		},
	}
	if err := management.Create(ctx, cluster); err != nil {
		return nil, fmt.Errorf("creating the Cluster: %w", err)
	}
	if err := management.Create(ctx, kubeconfig.GenerateSecret(cluster, credentials)); err != nil {
		return nil, fmt.Errorf("creating the Secret with the kubeconfig: %w", err)
	}

	return cluster, MarkProvisioned(ctx, management, cluster)
}

// MarkProvisioned sets the status of a Cluster to provisioned, as Cluster API's controllers would.
func MarkProvisioned(ctx context.Context, management client.Client, cluster *clusterv1.Cluster) error {
	// A running manager writes the Cluster too.
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := management.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
			return err
		}
		setProvisionedStatus(cluster)
		return management.Status().Update(ctx, cluster)
	})
	if err != nil {
		return fmt.Errorf("writing the status of the Cluster: %w", err)
	}
	return nil
}

// setProvisionedStatus sets in memory the status of a provisioned Cluster.
func setProvisionedStatus(cluster *clusterv1.Cluster) {
	cluster.Status.Phase = string(clusterv1.ClusterPhaseProvisioned)
	cluster.Status.Initialization = clusterv1.ClusterInitializationStatus{
		InfrastructureProvisioned: ptr.To(true),
		ControlPlaneInitialized:   ptr.To(true),
	}
	for _, c := range []metav1.Condition{
		{Type: clusterv1.ClusterInfrastructureReadyCondition, Reason: clusterv1.ClusterInfrastructureReadyReason},
		{Type: clusterv1.ClusterControlPlaneInitializedCondition, Reason: clusterv1.ClusterControlPlaneInitializedReason},
	} {
		c.Status, c.ObservedGeneration = metav1.ConditionTrue, cluster.Generation
		meta.SetStatusCondition(&cluster.Status.Conditions, c)
	}
}
