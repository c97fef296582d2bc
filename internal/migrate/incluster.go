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

// inClusterPool is a pool of the in-cluster provider. It stays as it is, and paused; its claims and IPAddresses are
// created again under their names.
type inClusterPool struct{ Source }

func (inClusterPool) words() words {
	return words{
		provider: "the in-cluster provider",
		outside:  "add the address to the pool, take it out of excludedAddresses, or delete the claim",
		becomes:  "created again, with the same address",
		imported: "Before you unpause the Clusters, make machine templates that name the new pool, and refer to them. New claims are served after 75 s.\n" +
			"When all is well: import --forget, then start the in-cluster provider if other pools need it, and delete the old pool.",
		back: "Start the in-cluster provider, then remove the annotation cluster.x-k8s.io/paused from the pool, then unpause the Clusters.",
	}
}

func (o inClusterPool) pool(ctx context.Context, from client.Reader, _ *journal) (*oldPool, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(incluster.GroupVersion.WithKind(o.Kind)) // stored in this version: its webhook is not needed
	err := from.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: o.Name}, u)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("there is no kind %s here: the CRDs of the in-cluster provider are not installed; a pool of Metal3 is named ippool/%s", o.Kind, o.Name)
	}
	if apierrors.IsNotFound(err) && o.Namespace != "" {
		return nil, fmt.Errorf("%s does not exist; is it a global one? Then write global/%s; is it one of Metal3? Then write ippool/%s", o, o.Name, o.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", o, err)
	}
	read := struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              incluster.Spec `json:"spec"`
	}{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &read); err != nil {
		return nil, fmt.Errorf("reading %s: %w", o, err)
	}
	return inClusterAs(read.ObjectMeta, read.Spec), nil
}

// inClusterAs is a pool of the in-cluster provider as ours.
func inClusterAs(about metav1.ObjectMeta, spec incluster.Spec) *oldPool {
	out := &oldPool{ObjectMeta: about}
	out.spec, out.notes, out.problems = spec.Translate(false)
	return out
}

func (o inClusterPool) users(ctx context.Context, from client.Reader) (users, error) {
	return usersOf(ctx, from, o.Namespace, o.ref())
}

func (o inClusterPool) surroundings(ctx context.Context, from client.Reader, in *found) (err error) {
	in.running, err = dropin.Running(ctx, from, dropin.InCluster)
	return err
}

func (o inClusterPool) unserved(in *found) (out []Problem) {
	if !annotations.HasPaused(in.pool) {
		resource := strings.ToLower(o.Kind)
		if o.Namespace != "" {
			resource += " -n " + o.Namespace
		}
		out = append(out, Problem{
			o.String() + " is not paused",
			fmt.Sprintf("kubectl annotate %s %s %s=   (do this while the in-cluster provider still runs: its webhook must answer)", resource, o.Name, clusterv1.PausedAnnotation),
		})
	}
	return append(out, stop(o, in.running)...)
}

func (inClusterPool) leave(context.Context, *Move, *journal) error    { return nil }
func (inClusterPool) comeBack(context.Context, *Move, *journal) error { return nil }
func (inClusterPool) leaveWaiting(context.Context, *Move) error       { return nil } // they are imported, too

func (inClusterPool) turn(ctx context.Context, t *turner, e Entry, released bool) error {
	return t.turn(ctx, e, released)
}

func (o inClusterPool) late(ctx context.Context, from client.Reader, _ *journal) (users, error) {
	return o.users(ctx, from) // those of the journal are of our pool by then
}

// stop is what to do about what runs of a provider.
func stop(o origin, running []string) (out []Problem) {
	for _, who := range running {
		out = append(out, Problem{o.words().provider + " runs: " + who, dropin.Stop(who)})
	}
	return out
}
