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

// beats are the heartbeats of the host (T1). One is written after the other.
type beats struct {
	// machine tells this machine from another one of its name, patience is after how long without a heartbeat that is dead.
	machine  string
	patience time.Duration
	// is the Lease as it was last written, its version empty: it is to be read.
	is coordinationv1.Lease
	// twin is the heartbeat of another machine of this name, and since when it has not changed.
	twin  string
	since time.Time
}

// machine identifies the machine since it was booted, and its network namespace.
func machine() string {
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

// write writes the next heartbeat. Where another machine has the name, that has to be silent for long enough (errTwin).
func (b *beats) write(ctx context.Context, a *Agent, h hostlb.Host) error {
	ctx, cancel := context.WithTimeout(ctx, a.Timing.Timeout())
	defer cancel()
	var err error
	for range 2 { // our own last one may have landed late
		if b.is.ResourceVersion == "" {
			if err := b.read(ctx, a); err != nil {
				return err
			}
		}
		if err = b.next(ctx, a, &h); !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
		b.is = coordinationv1.Lease{}
	}
	if err != nil {
		return fmt.Errorf("writing the heartbeat of the host, Lease %s/%s: %w", record.Namespace, record.HostName(h.Name), err)
	}
	return nil
}

// read reads the heartbeat that there is under the name of the host.
func (b *beats) read(ctx context.Context, a *Agent) error {
	is := coordinationv1.Lease{}
	err := a.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.HostName(a.Name)}, &is)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the heartbeat of the host, Lease %s/%s: %w", record.Namespace, record.HostName(a.Name), err)
	}
	if holder := ptr.Deref(is.Spec.HolderIdentity, ""); holder != "" && holder != b.machine {
		if b.twin != is.ResourceVersion {
			b.twin, b.since = is.ResourceVersion, time.Now()
		}
		if time.Since(b.since) < b.patience {
			return errTwin
		}
	}
	b.is = is
	return nil
}

// next writes a heartbeat on the one that was read, or the first one.
func (b *beats) next(ctx context.Context, a *Agent, h *hostlb.Host) error {
	o := &coordinationv1.Lease{}
	record.WriteHost(o, h, b.machine, metav1.NowMicro(), int32(a.Timing.Lifetime/time.Second))
	if b.is.ResourceVersion == "" {
		if err := a.Client.Create(ctx, o); err != nil {
			return err
		}
	} else if err := patch(ctx, a.Client, o, b.is.ResourceVersion); err != nil {
		return err
	}
	b.is = *o
	return nil
}

// end deletes the heartbeat of a host that has given up all that it had. One that stays is only old.
func (b *beats) end(ctx context.Context, a *Agent) error {
	if b.is.ResourceVersion == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.Timing.Timeout())
	defer cancel()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		o := &coordinationv1.Lease{}
		err := a.Live.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.HostName(a.Name)}, o)
		if err != nil || o.UID != b.is.UID || ptr.Deref(o.Spec.HolderIdentity, "") != b.machine {
			return err
		}
		return exact.Delete(ctx, a.Client, o)
	})
	if client.IgnoreNotFound(err) != nil {
		a.Log.Error(err, "The heartbeat of this host could not be deleted: it is old soon")
	}
	return nil
}

// patch writes what a Lease says, over one of a version, and reads what became of it into it. What others have written into it
// besides stays.
func patch(ctx context.Context, c client.Client, o *coordinationv1.Lease, version string) error {
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": version, "annotations": o.Annotations},
		"spec":     o.Spec,
	})
	if err != nil {
		return err
	}
	return c.Patch(ctx, o, client.RawPatch(types.MergePatchType, text))
}
