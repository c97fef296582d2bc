package migrate

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/dropin"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// inClusterPool is a pool of the in-cluster provider. It stays unchanged and paused; its claims and IPAddresses are
// created again under their names.
type inClusterPool struct{ Source }

func (inClusterPool) texts() providerTexts {
	return providerTexts{
		providerName:  "the in-cluster provider",
		outsideAdvice: "add the address to the pool, take it out of excludedAddresses, or delete the claim",
		claimsOutcome: "created again, with the same address",
		afterImport: "Before you unpause the Clusters, make machine templates that name the new pool, and refer to them. New claims are served after 75 s.\n" +
			"When all is well: import --forget, then start the in-cluster provider if other pools need it, and delete the old pool.",
		afterRollback: "Start the in-cluster provider, then remove the annotation cluster.x-k8s.io/paused from the pool, then unpause the Clusters.",
	}
}

func (ic inClusterPool) readPool(ctx context.Context, from client.Reader, _ *journal) (*sourcePool, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(incluster.GroupVersion.WithKind(ic.Kind)) // the stored version: no conversion webhook is needed
	err := from.Get(ctx, client.ObjectKey{Namespace: ic.Namespace, Name: ic.Name}, u)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("there is no kind %s here: the CRDs of the in-cluster provider are not installed; a pool of Metal3 is named ippool/%s", ic.Kind, ic.Name)
	}
	if apierrors.IsNotFound(err) && ic.Namespace != "" {
		return nil, fmt.Errorf("%s does not exist; is it a global one? Then write global/%s; is it one of Metal3? Then write ippool/%s", ic, ic.Name, ic.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", ic, err)
	}
	read := struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              incluster.Spec `json:"spec"`
	}{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &read); err != nil {
		return nil, fmt.Errorf("reading %s: %w", ic, err)
	}
	return sourcePoolFromInCluster(read.ObjectMeta, read.Spec), nil
}

// sourcePoolFromInCluster translates a pool of the in-cluster provider.
func sourcePoolFromInCluster(about metav1.ObjectMeta, spec incluster.Spec) *sourcePool {
	out := &sourcePool{ObjectMeta: about}
	out.spec, out.notes, out.problems = spec.ToNetworkPoolSpec(false)
	return out
}

func (ic inClusterPool) readUsers(ctx context.Context, from client.Reader) (poolUsers, error) {
	return readUsersForPool(ctx, from, ic.Namespace, ic.poolRef())
}

func (ic inClusterPool) readEnvironment(ctx context.Context, from client.Reader, in *planInput) (err error) {
	in.runningWorkloads, err = dropin.ListRunning(ctx, from, dropin.ProviderInCluster)
	return err
}

func (ic inClusterPool) findServingProblems(in *planInput) (out []Problem) {
	if !annotations.HasPaused(in.pool) {
		resource := strings.ToLower(ic.Kind)
		if ic.Namespace != "" {
			resource += " -n " + ic.Namespace
		}
		out = append(out, Problem{
			ic.String() + " is not paused",
			fmt.Sprintf("kubectl annotate %s %s %s=   (do this while the in-cluster provider still runs: its webhook must answer)", resource, ic.Name, clusterv1.PausedAnnotation),
		})
	}
	return append(out, describeRunning(ic, in.runningWorkloads)...)
}

func (inClusterPool) retirePool(context.Context, *Import, *journal) error  { return nil }
func (inClusterPool) restorePool(context.Context, *Import, *journal) error { return nil }
func (inClusterPool) releaseWaiting(context.Context, *Import) error        { return nil } // they are imported, too

func (inClusterPool) moveEntry(ctx context.Context, t *entryMover, e Entry, released bool) error {
	return t.moveEntry(ctx, e, released)
}

func (ic inClusterPool) readLateUsers(ctx context.Context, from client.Reader, _ *journal) (poolUsers, error) {
	return ic.readUsers(ctx, from) // those of the journal name our pool by then
}

// describeRunning returns a problem for each running workload of a provider.
func describeRunning(o sourceProvider, running []string) (out []Problem) {
	for _, workload := range running {
		out = append(out, Problem{o.texts().providerName + " runs: " + workload, dropin.StopAdvice(workload)})
	}
	return out
}
