package migrate

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// sourceProvider implements what differs between the providers from which a pool can be imported.
type sourceProvider interface {
	// texts returns the texts about this provider in the plan and the command.
	texts() providerTexts
	// readPool reads the old pool; where the import has deleted it, it returns the one of the journal.
	readPool(ctx context.Context, from client.Reader, j *journal) (*sourcePool, error)
	// readUsers reads the claims and addresses of the pool.
	readUsers(ctx context.Context, from client.Reader) (poolUsers, error)
	// readEnvironment reads the workloads that could serve the pool meanwhile. findServingProblems returns those that
	// must be stopped.
	readEnvironment(ctx context.Context, from client.Reader, in *planInput) error
	findServingProblems(in *planInput) []Problem
	// retirePool is called before our pool is created, restorePool after our pool is deleted. Both can be repeated.
	retirePool(ctx context.Context, m *Import, j *journal) error
	restorePool(ctx context.Context, m *Import, j *journal) error
	// moveEntry moves one entry as far as it is not moved yet.
	moveEntry(ctx context.Context, t *entryMover, e Entry, released bool) error
	// releaseWaiting reports the claims that wait and are not imported, including those created meanwhile, and removes
	// from them the finalizers that only the provider would remove. It can be repeated.
	releaseWaiting(ctx context.Context, m *Import) error
	// readLateUsers returns the claims and addresses of the old pool that are not in the journal: they were created
	// while the import ran.
	readLateUsers(ctx context.Context, from client.Reader, j *journal) (poolUsers, error)
}

// providerTexts are the texts about a provider.
type providerTexts struct {
	// providerName is the name of the provider in messages.
	providerName string
	// outsideAdvice is the advice for an address that our pool would not hand out.
	outsideAdvice string
	// claimsOutcome completes the sentence "n claims are ...".
	claimsOutcome string
	// afterImport and afterRollback are the next steps of the user.
	afterImport, afterRollback string
}

// sourcePool is the old pool, and its translation to a spec of ours.
type sourcePool struct {
	metav1.ObjectMeta
	spec            v1alpha1.NetworkPoolSpec
	notes, problems []string
	// metal3Object is the pool itself, where the import deletes it.
	metal3Object *unstructured.Unstructured
}

// poolUsers are the users of a pool, as claims and IPAddresses of Cluster API.
type poolUsers struct {
	claims    []ipamv1.IPAddressClaim
	addresses []ipamv1.IPAddress
	// addressByClaim maps the key of a claim to the IPAddress of that name.
	addressByClaim map[client.ObjectKey]*ipamv1.IPAddress
	// metal3Entries has the objects of Metal3 from which claims were made.
	metal3Entries map[client.ObjectKey]*Metal3Entry
	// notImported are the claims that are not imported, and stay unchanged.
	notImported []ipamv1.IPAddressClaim
	// problems are the findings that have no representation as claims and IPAddresses of Cluster API.
	problems []Problem
}
