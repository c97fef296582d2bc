package balancer

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// countingReader counts the reads from a workload cluster.
type countingReader struct {
	fakeWorkload
	reads int
}

func (c *countingReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.reads++
	return c.fakeWorkload.List(ctx, list, opts...)
}

func (c *countingReader) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	c.reads++
	o.SetName(key.Name)
	return c.broken
}

// TestMemoizedReader checks that the same request is sent once, whether it succeeds or not, and that a request that
// differs in any way is sent by itself.
func TestMemoizedReader(t *testing.T) {
	for name, broken := range map[string]error{"it answers": nil, "it does not": errors.New("no answer")} {
		live := &countingReader{fakeWorkload: fakeWorkload{services: []corev1.Service{service("a", "s", corev1.ServiceTypeLoadBalancer)}, broken: broken}}
		reads := NewMemoizedReader(live)
		for _, c := range []struct {
			opts  []client.ListOption
			reads int
		}{
			{nil, 1},
			{nil, 1},
			{[]client.ListOption{client.InNamespace("a")}, 2},
			{[]client.ListOption{client.MatchingFields{"spec.type": "LoadBalancer"}}, 3},
			{[]client.ListOption{client.MatchingFields{"spec.type": "LoadBalancer"}}, 3},
			{[]client.ListOption{client.MatchingLabels{"a": "b"}}, 4},
		} {
			var all corev1.ServiceList
			if err := reads.List(t.Context(), &all, c.opts...); !errors.Is(err, broken) || len(all.Items) != 1 || live.reads != c.reads {
				t.Errorf("%s: %v gives %d Services, %v, after %d reads", name, c.opts, len(all.Items), err, live.reads)
			}
		}
		for _, c := range []struct {
			o     client.Object
			key   string
			reads int
		}{{&corev1.Service{}, "s", 5}, {&corev1.Service{}, "s", 5}, {&corev1.Service{}, "other", 6}, {&corev1.Node{}, "s", 7}} {
			if err := reads.Get(t.Context(), client.ObjectKey{Name: c.key}, c.o); !errors.Is(err, broken) || c.o.GetName() != c.key || live.reads != c.reads {
				t.Errorf("%s: %T %s is %s, %v, after %d reads", name, c.o, c.key, c.o.GetName(), err, live.reads)
			}
		}
	}
}
