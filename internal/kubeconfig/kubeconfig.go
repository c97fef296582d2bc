package kubeconfig

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Reader reads Secrets with kubeconfigs, and rejects those whose kubeconfig is not self-contained. An account that may
// write a Secret in a namespace chooses the server that the process of the reader connects to: so the kubeconfig must
// not name anything of the machine that the process runs on. A file, for example a private key or the token of a
// ServiceAccount, would be sent to that server, and a program would run with the rights of the process.
type Reader struct{ client.Reader }

// Get implements client.Reader.
func (r Reader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := r.Reader.Get(ctx, key, o, opts...); err != nil {
		return err
	}
	if s, ok := o.(*corev1.Secret); ok {
		if err := checkSelfContained(s.Data[secret.KubeconfigDataName]); err != nil {
			return fmt.Errorf("kubeconfig of Secret %s: %w", key, err)
		}
	}
	return nil
}

// SecretKeyForCluster returns the key of the Secret with the kubeconfig of a Cluster.
func SecretKeyForCluster(cluster client.ObjectKey) client.ObjectKey {
	return client.ObjectKey{Namespace: cluster.Namespace, Name: secret.Name(cluster.Name, secret.Kubeconfig)}
}

// RESTConfigForCluster returns the configuration for connections to a workload cluster.
func RESTConfigForCluster(ctx context.Context, from client.Reader, cluster client.ObjectKey) (*rest.Config, error) {
	key, s := SecretKeyForCluster(cluster), &corev1.Secret{}
	if err := (Reader{from}).Get(ctx, key, s); err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Data[secret.KubeconfigDataName])
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of Secret %s: %w", key, err)
	}
	return config, nil
}

// checkSelfContained returns an error if a kubeconfig names files or programs.
func checkSelfContained(kubeconfig []byte) error {
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
