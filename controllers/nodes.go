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
func setupNodes(mgr manager.Manager, o Options, streams *stream.Client, writers *workers.Workers[nodeipam.Key]) (*nodecidr.Reconciler, error) {
	direct, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, err
	}
	live, recorder := mgr.GetAPIReader(), text.Recorder{EventRecorder: mgr.GetEventRecorder("butler-ipam")}
	writes := &pace.Writes{Clock: clock.RealClock{}}
	objects := nodeipam.Kinds{v1alpha1.ClusterCIDRKind: nodeipam.ClusterCIDRs{Client: writes.Client(direct), Live: live}}
	if o.NetworkingX {
		objects[nodeipam.NetworkingXKind] = nodeipam.NetworkingX{Client: writes.Client(direct), Live: live}
	}
	site := nodeipam.NewSite(nodeipam.Options{
		Client: streams.Patching(direct), Live: live, Lister: streams, Objects: objects,
		ID: string(uuid.NewUUID()), Elected: o.Elected, Workers: writers,
		Recorder: recorder, Now: time.Now,
	})
	nodes := &nodecidr.Reconciler{Client: mgr.GetClient(), Site: site, Services: o.Services, Now: time.Now}
	if o.FlagsCIDR != nil {
		nodes.Flags = &nodecidr.Flags{Client: direct, Live: live, Recorder: recorder, Spec: *o.FlagsCIDR, Now: time.Now}
	}
	if o.NetworkingX {
		nodes.NetworkingX = &nodecidr.NetworkingX{Recorder: recorder, Now: time.Now}
	}
	if err := auditNodes(mgr, o, func() []*nodeipam.Site { return []*nodeipam.Site{site} }); err != nil {
		return nil, err
	}
	err = nodes.SetupWithManager(mgr, streams, live, controller.TypedOptions[nodeipam.Key]{CacheSyncTimeout: syncTimeout})
	return nodes, err
}

// auditNodes adds the audit of Nodes, where there is to be one.
func auditNodes(mgr manager.Manager, o Options, sites func() []*nodeipam.Site) error {
	if o.AuditInterval == 0 {
		return nil
	}
	return mgr.Add(&nodeipam.Auditor{Sites: sites, Interval: o.AuditInterval, Clock: clock.RealClock{}})
}
