package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/uuid"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// storedKind is a kind that is copied, and its resource, which is part of the key in etcd.
type storedKind struct{ kind, resource string }

var (
	claimKind   = storedKind{"IPAddressClaim", "ipaddressclaims"}
	addressKind = storedKind{"IPAddress", "ipaddresses"}
)

// fillStorage creates served claims as copies of those that the manager has served, one template from each pool, and
// waits until the manager has read them. It writes them to etcd directly: through the API, 50,000 of them would take
// six minutes.
func (f *claimFleet) fillStorage(ctx context.Context, from, to int) error {
	claims, err := f.readTemplates(ctx, claimKind)
	if err != nil {
		return err
	}
	addresses, err := f.readTemplates(ctx, addressKind)
	if err != nil {
		return err
	}
	if err := runEach(ctx, to-from, func(ctx context.Context, i int) error {
		i += from
		uid, of := string(uuid.NewUUID()), i%f.pools
		// The claim is written first: an IPAddress without one is an orphan.
		if err := f.writeToEtcd(ctx, claims[of].renderCopy(claimName(i), uid, uid, f.address(i))); err != nil {
			return err
		}
		return f.writeToEtcd(ctx, addresses[of].renderCopy(claimName(i), string(uuid.NewUUID()), uid, f.address(i)))
	}); err != nil {
		return err
	}
	return waitForMetric(ctx, f.manager, "butler_ipam_pool_allocated_addresses", float64(to))
}

// objectTemplate is an object as stored in etcd, with the texts in it that differ in each copy.
type objectTemplate struct{ key, text, name, uid, claim, address string }

// readTemplates returns templates from the first object of a kind in each pool.
func (f *claimFleet) readTemplates(ctx context.Context, of storedKind) ([]objectTemplate, error) {
	out := make([]objectTemplate, f.pools)
	for i := range out {
		claim := &ipamv1.IPAddressClaim{}
		key := client.ObjectKey{Namespace: namespace, Name: claimName(i)}
		if err := f.Get(ctx, key, claim); err != nil {
			return nil, err
		}
		obj := &unstructured.Unstructured{}
		obj.SetGroupVersionKind(ipamv1.GroupVersion.WithKind(of.kind))
		if err := f.Get(ctx, key, obj); err != nil {
			return nil, err
		}
		given := &ipamv1.IPAddress{}
		if err := f.Get(ctx, key, given); err != nil {
			return nil, err
		}
		uid := string(obj.GetUID())
		obj.SetResourceVersion("") // etcd's revision takes its place
		text, err := json.Marshal(obj)
		if err != nil {
			return nil, err
		}
		out[i] = objectTemplate{
			key:  fmt.Sprintf("/registry/%s/%s/%s/", ipamv1.GroupVersion.Group, of.resource, namespace),
			text: string(text), name: claimName(i), uid: uid, claim: string(claim.UID), address: given.Spec.Address,
		}
	}
	return out, nil
}

func (t objectTemplate) renderCopy(name, uid, claim, address string) etcdPut {
	text := strings.NewReplacer(t.uid, uid, t.claim, claim, `"`+t.name+`"`, `"`+name+`"`, `"`+t.address+`"`, `"`+address+`"`).Replace(t.text)
	return etcdPut{Key: []byte(t.key + name), Value: []byte(text)}
}

// etcdPut is a key and a value in etcd's JSON format.
type etcdPut struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// writeToEtcd writes one key to etcd. Several keys in one transaction would share a resource version, and a watch
// that resumes continues after it.
func (f *claimFleet) writeToEtcd(ctx context.Context, p etcdPut) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.controlPlane.EtcdURL()+"/v3/kv/put", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("writing into etcd: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // drained, so that the connection is reused
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("writing into etcd: %s", resp.Status)
	}
	return nil
}
