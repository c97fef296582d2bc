// Package kubeconfig reads the kubeconfigs of workload clusters, which tenants may write, without trusting them.
package kubeconfig
