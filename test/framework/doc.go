// Package framework starts what tests, benchmarks and the quickstart run against: a real etcd and kube-apiserver on
// loopback, and the manager as a process of its own that can be killed, stopped and frozen. Nothing here is a fake.
//
//	cp, err := framework.StartControlPlane(framework.Options{})
//	defer cp.Stop()
//	mgr, err := framework.StartManager(ctx, framework.ManagerOptions{Kubeconfig: cp.Kubeconfig})
//	defer mgr.Stop()
package framework
