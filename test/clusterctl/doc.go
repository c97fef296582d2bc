// Package clusterctl installs, upgrades and moves this provider with the real clusterctl, from a repository that
// `make release-manifests` wrote. On the installed provider it runs the commands of the documentation
// (documented_test.go). The management clusters are a kube-apiserver, an etcd and a kube-controller-manager each.
// Other parts of a cluster are replaced as follows:
//
//   - No Pods run. The manager is a process with the flags of the installed Deployment and a token of its
//     ServiceAccount, and therefore with the installed permissions (site_test.go).
//   - Services have no endpoints, and cert-manager is two kinds without a controller. The test points the webhook
//     configuration to the process, with a certificate that it made, as kube-proxy and cert-manager would do.
//   - The core provider is CAPI's own components of the version in go.mod, except those that would need its Pod: its
//     webhooks, and the conversion of its kinds (repository_test.go). The test writes the status of Clusters in place
//     of its controllers.
package clusterctl
