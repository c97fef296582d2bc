package controllers

import (
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/nodecidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/stream"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// setupNodes adds the controller that gives the Nodes of the manager's own cluster their pod CIDRs.
func setupNodes(mgr manager.Manager, o Options, streams *stream.Client, writers *workers.Workers[nodeipam.ClusterKey]) (*nodecidr.Reconciler, error) {
	direct, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, err
	}
	live, recorder := mgr.GetAPIReader(), text.Recorder{EventRecorder: mgr.GetEventRecorder("butler-ipam")}
	writes := &pace.WritePacer{Clock: clock.RealClock{}}
	objects := nodeipam.ProtectorByKind{v1alpha1.ClusterCIDRKind: nodeipam.ClusterCIDRProtector{Client: writes.WrapClient(direct), Live: live}}
	if o.NetworkingX {
		objects[nodeipam.NetworkingXKind] = nodeipam.NetworkingXProtector{Client: writes.WrapClient(direct), Live: live}
	}
	site := nodeipam.NewClusterAllocator(nodeipam.Options{
		Client: streams.NewPatchingClient(direct), Live: live, Lister: streams, ObjectProtector: objects,
		ManagerID: string(uuid.NewUUID()), Elected: o.LeaderElection, Workers: writers,
		Recorder: recorder, Now: time.Now,
	})
	nodes := &nodecidr.Reconciler{Client: mgr.GetClient(), Allocator: site, StaticServiceCIDRs: o.ServiceCIDRs, Now: time.Now}
	if o.FlagClusterCIDR != nil {
		nodes.Flags = &nodecidr.FlagsReconciler{Client: direct, Live: live, Recorder: recorder, ClusterCIDRSpec: *o.FlagClusterCIDR, Now: time.Now}
	}
	if o.NetworkingX {
		nodes.NetworkingX = &nodecidr.NetworkingXReporter{Recorder: recorder, Now: time.Now}
	}
	if err := setupNodeAudit(mgr, o, func() []*nodeipam.ClusterAllocator { return []*nodeipam.ClusterAllocator{site} }); err != nil {
		return nil, err
	}
	err = nodes.SetupWithManager(mgr, streams, live, controller.TypedOptions[nodeipam.ClusterKey]{CacheSyncTimeout: cacheSyncTimeout})
	return nodes, err
}

// setupNodeAudit adds the audit of Nodes, unless its interval is 0.
func setupNodeAudit(mgr manager.Manager, o Options, sites func() []*nodeipam.ClusterAllocator) error {
	if o.AuditInterval == 0 {
		return nil
	}
	return mgr.Add(&nodeipam.Auditor{ClusterAllocators: sites, Interval: o.AuditInterval, Clock: clock.RealClock{}})
}
