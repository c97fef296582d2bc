//go:build linux

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// heartbeats writes the heartbeats of the host, one after the other (T1: a host is alive while its heartbeat changes).
type heartbeats struct {
	// machineID distinguishes this machine from another one of its name; heartbeatTimeout is after how long without a
	// heartbeat that machine is dead.
	machineID        string
	heartbeatTimeout time.Duration
	// lastWritten is the Lease as it was last written; if its version is empty, the Lease must be read.
	lastWritten coordinationv1.Lease
	// duplicateVersion is the version of the heartbeat of another machine of this name, and duplicateSince is since when
	// it has not changed.
	duplicateVersion string
	duplicateSince   time.Time
}

// readMachineID identifies the machine since its boot, and its network namespace.
func readMachineID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		boot = []byte(uuid.NewUUID())
	}
	namespace, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		namespace = "net"
	}
	return strings.TrimSpace(string(boot)) + " " + namespace
}

// writeHeartbeat writes the next heartbeat. Where another machine has the name, that machine must be silent for long
// enough (errDuplicateHostName).
func (hb *heartbeats) writeHeartbeat(ctx context.Context, a *Agent, h hostlb.Host) error {
	ctx, cancel := context.WithTimeout(ctx, a.Timing.APITimeout())
	defer cancel()
	var err error
	for range 2 { // our own last write may have landed late
		if hb.lastWritten.ResourceVersion == "" {
			if err := hb.readHeartbeat(ctx, a); err != nil {
				return err
			}
		}
		if err = hb.createOrPatch(ctx, a, &h); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
		hb.lastWritten = coordinationv1.Lease{}
	}
	if err != nil {
		return fmt.Errorf("writing the heartbeat of the host, Lease %s/%s: %w", record.Namespace, record.HeartbeatName(h.Name), err)
	}
	return nil
}

// readHeartbeat reads the existing heartbeat under the name of the host.
func (hb *heartbeats) readHeartbeat(ctx context.Context, a *Agent) error {
	live := coordinationv1.Lease{}
	err := a.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.HeartbeatName(a.Name)}, &live)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the heartbeat of the host, Lease %s/%s: %w", record.Namespace, record.HeartbeatName(a.Name), err)
	}
	if holder := ptr.Deref(live.Spec.HolderIdentity, ""); holder != "" && holder != hb.machineID {
		if hb.duplicateVersion != live.ResourceVersion {
			hb.duplicateVersion, hb.duplicateSince = live.ResourceVersion, time.Now()
		}
		if time.Since(hb.duplicateSince) < hb.heartbeatTimeout {
			return fmt.Errorf("host name %q %w", a.Name, errDuplicateHostName)
		}
	}
	hb.lastWritten = live
	return nil
}

// createOrPatch writes a heartbeat over the one that was read, or creates the first one.
func (hb *heartbeats) createOrPatch(ctx context.Context, a *Agent, h *hostlb.Host) error {
	o := &coordinationv1.Lease{}
	record.WriteHeartbeat(o, h, hb.machineID, metav1.NowMicro(), int32(a.Timing.Lifetime/time.Second))
	if hb.lastWritten.ResourceVersion == "" {
		if err := a.Client.Create(ctx, o); err != nil {
			return err
		}
	} else if err := patchLease(ctx, a.Client, o, hb.lastWritten.ResourceVersion); err != nil {
		return err
	}
	hb.lastWritten = *o
	return nil
}

// deleteHeartbeat deletes the heartbeat of a host that has released all its addresses and locks. A heartbeat that stays
// does no harm: it becomes old.
func (hb *heartbeats) deleteHeartbeat(ctx context.Context, a *Agent) error {
	if hb.lastWritten.ResourceVersion == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.Timing.APITimeout())
	defer cancel()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		o := &coordinationv1.Lease{}
		err := a.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.HeartbeatName(a.Name)}, o)
		if err != nil || o.UID != hb.lastWritten.UID || ptr.Deref(o.Spec.HolderIdentity, "") != hb.machineID {
			return err
		}
		return exact.DeleteWithPreconditions(ctx, a.Client, o)
	})
	if client.IgnoreNotFound(err) != nil {
		a.Log.Error(err, "Failed to delete the heartbeat of this host, it becomes old soon")
	}
	return nil
}

// patchLease writes the annotations and the spec of a Lease over a version of it, and reads the result into o. What
// other writers have added stays.
func patchLease(ctx context.Context, c client.Client, o *coordinationv1.Lease, version string) error {
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": version, "annotations": o.Annotations},
		"spec":     o.Spec,
	})
	if err != nil {
		return err
	}
	return c.Patch(ctx, o, client.RawPatch(types.MergePatchType, text))
}
