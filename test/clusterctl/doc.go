// Package clusterctl installs, upgrades and moves this provider with the real clusterctl, from a repository that `make
// release-manifests` wrote. Where it is installed, what the documentation tells to run is run (documented_test.go). The
// management clusters are a kube-apiserver, an etcd and a kube-controller-manager each. What there is instead of the
// rest:
//
//   - No Pods run. The manager is a process with the flags of the installed Deployment and a token of its
//     ServiceAccount, so with the rights that were installed (site_test.go).
//   - Services lead nowhere, and cert-manager is two kinds without a controller. So the webhook configuration is
//     pointed at the process, with a certificate that the test made: what kube-proxy and cert-manager do.
//   - The core provider is CAPI's own components of the version in go.mod, but for what would need its Pod to
//     answer: its webhooks, and the conversion of its kinds (repository_test.go). What its controllers would write
//     into the status of a Cluster, the test writes.
package clusterctl
