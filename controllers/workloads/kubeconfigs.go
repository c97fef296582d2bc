package workloads

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kubeconfigs reads the Secrets with the kubeconfigs of workload clusters. Who may write one in a namespace has the
// manager connect to a server of his choice: so it may name nothing that is the manager's own. A file, such as the
// token of its ServiceAccount, would be sent to that server.
type kubeconfigs struct{ client.Reader }

// Get implements client.Reader.
func (k kubeconfigs) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := k.Reader.Get(ctx, key, o, opts...); err != nil {
		return err
	}
	if s, is := o.(*corev1.Secret); is {
		if err := selfContained(s.Data[secret.KubeconfigDataName]); err != nil {
			return fmt.Errorf("kubeconfig of Secret %s: %w", key, err)
		}
	}
	return nil
}

// selfContained refuses a kubeconfig that names files or programs.
func selfContained(kubeconfig []byte) error {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return err
	}
	for _, c := range config.Clusters {
		if c.CertificateAuthority != "" {
			return errors.New("it names a file, in certificate-authority; write certificate-authority-data")
		}
	}
	for _, a := range config.AuthInfos {
		switch {
		case a.TokenFile != "", a.ClientCertificate != "", a.ClientKey != "":
			return errors.New("it names a file, in tokenFile, client-certificate or client-key; write token, client-certificate-data and client-key-data")
		case a.Exec != nil, a.AuthProvider != nil:
			return errors.New("it names a program, in exec or auth-provider; write token, or client-certificate-data and client-key-data")
		}
	}
	return nil
}

// WithoutKubeconfig says why there is no way to reach the API server of a Cluster that should have one: its Secret is
// missing, or names what it must not. Empty: that is not the reason.
func WithoutKubeconfig(ctx context.Context, live client.Reader, cluster *clusterv1.Cluster) (string, error) {
	if !ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false) {
		return "", nil // it is being built
	}
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: secret.Name(cluster.Name, secret.Kubeconfig)}
	err := kubeconfigs{live}.Get(ctx, key, &corev1.Secret{})
	switch {
	case err == nil:
		return "", nil
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("Secret %s does not exist: without it the API server of the Cluster cannot be reached", key), nil
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return "", fmt.Errorf("reading Secret %s: %w", key, err)
	}
	return err.Error(), nil
}
