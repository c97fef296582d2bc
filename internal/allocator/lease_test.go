package allocator

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestUnpublishedGrantEndsWithDeletion checks R6: a consumer keeps an address that was published. A grant that was not
// ends with the next commit, whatever keeps the object.
func TestUnpublishedGrantEndsWithDeletion(t *testing.T) {
	deleted := func(o *v1alpha1.IPLease) {
		o.DeletionTimestamp, o.Finalizers = ptr.To(metav1.NewTime(grantstest.Noon)), append(o.Finalizers, v1alpha1.LeaseShownFinalizer)
	}
	for name, c := range map[string]struct {
		changes  []func(*v1alpha1.IPLease)
		granted  bool
		released bool
	}{
		"granted alone":       {changes: []func(*v1alpha1.IPLease){deleted}, granted: true, released: true},
		"granted and on show": {changes: []func(*v1alpha1.IPLease){grantstest.WithLeasedAddress("10.0.0.1"), deleted}, granted: true},
		"on show":             {changes: []func(*v1alpha1.IPLease){grantstest.WithLeasedAddress("10.0.0.1"), deleted}},
		"on record":           {changes: []func(*v1alpha1.IPLease){grantstest.WithLeasedAddress("10.0.0.1"), grantstest.WithShownAddress(""), deleted}}, // a move brings no status
		"not on show":         {changes: []func(*v1alpha1.IPLease){grantstest.WithLeasedAddress("10.0.0.1"), deleted, func(o *v1alpha1.IPLease) { o.Finalizers = o.Finalizers[:1] }}, released: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.60")
			l := grantstest.ObserveLease(p, "x", c.changes...)
			if c.granted {
				p.Grants.ByClaimant[l.Owner.UID] = &grants.Grant{Owner: l.Owner, Range: netipx.IPRangeFrom(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.1")), Committed: true, CommitConfirmedAt: grantstest.Noon}
				p.Queues.QueueClaimant(l)
			}
			a := New(Options{})
			due, _ := p.ListDueWrites(grantstest.Noon, 8, time.Minute, a.admission.newAdmissionFunc(t.Context(), p, grantstest.Noon), a.admission.newReleaseAdmissionFunc(t.Context(), p))
			if got := slices.Contains(due.ReleaseClaimants, l.Owner.UID); got != c.released {
				t.Errorf("it is released: %v, want %v", got, c.released)
			}
		})
	}
}
