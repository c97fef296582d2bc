package migrate

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// origin is what is different about the provider that a pool comes from.
type origin interface {
	// words are how the plan and the command speak of it.
	words() words
	// pool reads the pool that is left; where the import has taken it away, it is the one that the journal has.
	pool(ctx context.Context, from client.Reader, j *journal) (*oldPool, error)
	// users reads who has something of the pool.
	users(ctx context.Context, from client.Reader) (users, error)
	// surroundings reads what could serve the pool meanwhile. With unserved it says what of that has to end.
	surroundings(ctx context.Context, from client.Reader, in *found) error
	unserved(in *found) []Problem
	// leave is done to the old pool before there is ours, comeBack when ours is gone. Both can be repeated.
	leave(ctx context.Context, m *Move, j *journal) error
	comeBack(ctx context.Context, m *Move, j *journal) error
	// turn moves one entry as far as it is not there yet.
	turn(ctx context.Context, t *turner, e Entry, released bool) error
	// leaveWaiting tells of claims that wait and are not imported, also of those that came meanwhile, and takes off them what
	// only the provider would take off. It can be repeated.
	leaveWaiting(ctx context.Context, m *Move) error
	// late is who was given something of the old pool while the import ran: claims and IPAddresses that the journal does not
	// know.
	late(ctx context.Context, from client.Reader, j *journal) (users, error)
}

// words are texts about an origin.
type words struct {
	// provider is how a person calls it.
	provider string
	// outside is what to do about an address that our pool would not hand out.
	outside string
	// becomes is what happens to claims, said of their number.
	becomes string
	// imported and back are what to do next.
	imported, back string
}

// oldPool is the pool that is left, and what it is as ours.
type oldPool struct {
	metav1.ObjectMeta
	spec            v1alpha1.NetworkPoolSpec
	notes, problems []string
	// metal3 is the pool itself, where the import takes it away.
	metal3 *unstructured.Unstructured
}

// users are who has something of a pool, as claims and IPAddresses of Cluster API.
type users struct {
	claims    []ipamv1.IPAddressClaim
	addresses []ipamv1.IPAddress
	// named are IPAddresses by the name of the claim they would be found under.
	named map[client.ObjectKey]*ipamv1.IPAddress
	// metal3 are what claims were made of.
	metal3 map[client.ObjectKey]*Metal3Entry
	// left are claims that are not imported, and stay as they are.
	left []ipamv1.IPAddressClaim
	// problems are what cannot be said as claims and IPAddresses of Cluster API.
	problems []Problem
}
