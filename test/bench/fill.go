package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/uuid"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stored is a kind of which copies are made, and where the API server keeps it.
type stored struct{ kind, resource string }

// fill makes claims that have their addresses as copies of those that the manager has served, one of each pool, and
// waits until it has seen them. They are written where the API server keeps them: by way of the API, 50,000 of them
// would take it six minutes.
func (s *scale) fill(ctx context.Context, from, to int) error {
	claims, err := s.copies(ctx, stored{"IPAddressClaim", "ipaddressclaims"})
	if err != nil {
		return err
	}
	addresses, err := s.copies(ctx, stored{"IPAddress", "ipaddresses"})
	if err != nil {
		return err
	}
	if err := each(ctx, to-from, func(ctx context.Context, i int) error {
		i += from
		uid, of := string(uuid.NewUUID()), i%s.pools
		// The claim first: an IPAddress without one is an orphan.
		if err := s.put(ctx, claims[of].copy(claimName(i), uid, uid, s.address(i))); err != nil {
			return err
		}
		return s.put(ctx, addresses[of].copy(claimName(i), string(uuid.NewUUID()), uid, s.address(i)))
	}); err != nil {
		return err
	}
	return metric(ctx, s.m, "butler_ipam_pool_allocated_addresses", float64(to))
}

// template is an object as the API server keeps it, with what is its own: those texts stand for what a copy has.
type template struct{ key, text, name, uid, claim, address string }

// copies are templates of the first objects of a kind in each pool.
func (s *scale) copies(ctx context.Context, of stored) ([]template, error) {
	out := make([]template, s.pools)
	for i := range out {
		claim := &ipamv1.IPAddressClaim{}
		key := client.ObjectKey{Namespace: namespace, Name: claimName(i)}
		if err := s.Get(ctx, key, claim); err != nil {
			return nil, err
		}
		obj := &unstructured.Unstructured{}
		obj.SetGroupVersionKind(ipamv1.GroupVersion.WithKind(of.kind))
		if err := s.Get(ctx, key, obj); err != nil {
			return nil, err
		}
		given := &ipamv1.IPAddress{}
		if err := s.Get(ctx, key, given); err != nil {
			return nil, err
		}
		uid := string(obj.GetUID())
		obj.SetResourceVersion("") // etcd's
		text, err := json.Marshal(obj)
		if err != nil {
			return nil, err
		}
		out[i] = template{
			key:  fmt.Sprintf("/registry/%s/%s/%s/", ipamv1.GroupVersion.Group, of.resource, namespace),
			text: string(text), name: claimName(i), uid: uid, claim: string(claim.UID), address: given.Spec.Address,
		}
	}
	return out, nil
}

func (t template) copy(name, uid, claim, address string) put {
	text := strings.NewReplacer(t.uid, uid, t.claim, claim, `"`+t.name+`"`, `"`+name+`"`, `"`+t.address+`"`, `"`+address+`"`).Replace(t.text)
	return put{Key: []byte(t.key + name), Value: []byte(text)}
}

// put is a key and a value as etcd's JSON has them.
type put struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// put writes one key into etcd. Several in one transaction would have one resource version, and a watch that is taken
// up again goes on after it.
func (s *scale) put(ctx context.Context, p put) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cp.EtcdURL()+"/v3/kv/put", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("writing into etcd: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // the connection is used again
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("writing into etcd: %s", resp.Status)
	}
	return nil
}

// waitBound waits until a claim has its address.
func (c *clients) waitBound(ctx context.Context, name string) error {
	list := &ipamv1.IPAddressClaimList{}
	w, err := c.Watch(ctx, list, client.InNamespace(namespace), client.MatchingFields{metav1.ObjectNameField: name})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if claim, ok := e.Object.(*ipamv1.IPAddressClaim); ok && isReady(claim) {
			return nil
		}
	}
	return fmt.Errorf("the watch of claim %s ended", name)
}
