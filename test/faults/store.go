package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
)

// Change is an event that a watch shows.
type Change struct {
	Deleted bool
	Object  client.Object
}

// store is what the server has. Objects in it are never changed, only replaced.
type store struct {
	objects map[Ref]client.Object
	// log is every change there was, by kind.
	log     map[Kind][]Change
	version int64
	uids    int
	// webhook changes the metadata of an object that is written, as mutating admission does; nil: there is none.
	webhook func(client.Object)
}

func (s *store) get(ref Ref) (client.Object, error) {
	if o, ok := s.objects[ref]; ok {
		return copyOf(o), nil
	}
	return nil, apierrors.NewNotFound(ref.resource(), ref.Name)
}

func (s *store) create(o client.Object) (client.Object, error) {
	ref := RefOf(o)
	if _, exists := s.objects[ref]; exists {
		return nil, apierrors.NewAlreadyExists(ref.resource(), ref.Name)
	}
	s.uids++
	o = sent(o)
	// Distinct, and as a real one's in no order: Knuth's multiplicative hash.
	o.SetUID(types.UID(fmt.Sprintf("uid-%08x", uint32(s.uids)*2654435761)))
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	o.SetGeneration(1)
	setStatus(o, ref.empty())
	if s.webhook != nil {
		s.webhook(o)
	}
	return s.put(o), nil
}

// update replaces an object, or its status only.
func (s *store) update(o client.Object, status bool) (client.Object, error) {
	ref := RefOf(o)
	old, exists := s.objects[ref]
	if !exists {
		return nil, apierrors.NewNotFound(ref.resource(), ref.Name)
	}
	if err := fenced(ref, old, o.GetUID(), o.GetResourceVersion()); err != nil {
		return nil, err
	}
	return s.replace(ref, old, sent(o), status)
}

// patch applies a JSON merge patch to an object, or to its status only.
func (s *store) patch(ref Ref, body []byte, status bool) (client.Object, error) {
	old, exists := s.objects[ref]
	if !exists {
		return nil, apierrors.NewNotFound(ref.resource(), ref.Name)
	}
	patch := &unstructured.Unstructured{}
	decode(body, &patch.Object)
	uid, version := patch.GetUID(), patch.GetResourceVersion()
	if ref.Kind == Nodes && uid != "" && uid != old.GetUID() {
		return nil, invalid(ref, "metadata.uid", "field is immutable") // kinds of the core answer so
	}
	if err := fenced(ref, old, uid, version); err != nil {
		return nil, err
	}
	return s.replace(ref, old, typed(ref, merge(untyped(old), patch.Object)), status)
}

// apply is a server-side apply by the one manager of the fields, forced: what it says is set, lists as a whole.
func (s *store) apply(ref Ref, body []byte) (client.Object, error) {
	if _, exists := s.objects[ref]; exists {
		return s.patch(ref, body, false)
	}
	o := ref.empty()
	decode(body, o)
	if o.GetUID() != "" {
		return nil, apierrors.NewConflict(ref.resource(), ref.Name, errors.New("it has a UID, and does not exist"))
	}
	return s.create(o)
}

// delete deletes an object, or marks it where finalizers keep it.
func (s *store) delete(ref Ref, uid types.UID, version string) (client.Object, error) {
	old, exists := s.objects[ref]
	if !exists {
		return nil, apierrors.NewNotFound(ref.resource(), ref.Name)
	}
	if err := fenced(ref, old, uid, version); err != nil {
		return nil, err
	}
	next := copyOf(old)
	if len(old.GetFinalizers()) == 0 {
		return s.remove(next), nil
	}
	if old.GetDeletionTimestamp() == nil {
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		next.SetDeletionTimestamp(&now)
		return s.put(next), nil
	}
	return next, nil
}

func fenced(ref Ref, old client.Object, uid types.UID, version string) error {
	if uid != "" && uid != old.GetUID() {
		return apierrors.NewConflict(ref.resource(), ref.Name, fmt.Errorf("UID is %s, not %s", old.GetUID(), uid))
	}
	if version != "" && version != old.GetResourceVersion() {
		return apierrors.NewConflict(ref.resource(), ref.Name, fmt.Errorf("resource version is %s, not %s", old.GetResourceVersion(), version))
	}
	return nil
}

// replace puts next in the place of old, as far as a client may.
func (s *store) replace(ref Ref, old, next client.Object, status bool) (client.Object, error) {
	if status {
		sent := next
		next = copyOf(old)
		setStatus(next, sent)
	} else {
		setStatus(next, old)
		next.SetUID(old.GetUID())
		next.SetCreationTimestamp(old.GetCreationTimestamp())
		next.SetDeletionTimestamp(old.GetDeletionTimestamp())
		next.SetGeneration(old.GetGeneration())
		if s.webhook != nil && old.GetDeletionTimestamp() == nil {
			s.webhook(next)
		}
	}
	next.SetResourceVersion(old.GetResourceVersion())
	if equality.Semantic.DeepEqual(old, next) {
		return next, nil
	}
	if err := validate(ref, old, next); err != nil {
		return nil, err
	}
	if before, is := specOf(old); is {
		if after, _ := specOf(next); !equality.Semantic.DeepEqual(before, after) {
			next.SetGeneration(old.GetGeneration() + 1)
		}
	}
	if old.GetDeletionTimestamp() != nil {
		for _, f := range next.GetFinalizers() {
			if !slices.Contains(old.GetFinalizers(), f) {
				return nil, apierrors.NewInvalid(schema.GroupKind{Kind: string(ref.Kind)}, ref.Name, nil)
			}
		}
		if len(next.GetFinalizers()) == 0 {
			return s.remove(next), nil
		}
	}
	return s.put(next), nil
}

// validate is what the API server sees to of its own: a Node has its CIDRs for ever.
func validate(ref Ref, old, next client.Object) error {
	was, is := old.(*corev1.Node)
	will, _ := next.(*corev1.Node)
	if is && len(was.Spec.PodCIDRs) > 0 && !slices.Equal(was.Spec.PodCIDRs, will.Spec.PodCIDRs) {
		return invalid(ref, "spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid")
	}
	return nil
}

func invalid(ref Ref, path, why string) error {
	return apierrors.NewInvalid(schema.GroupKind{Kind: string(ref.Kind)}, ref.Name, field.ErrorList{field.Forbidden(field.NewPath(path), why)})
}

func (s *store) put(o client.Object) client.Object {
	s.stamp(o)
	s.objects[RefOf(o)] = o
	s.log[RefOf(o).Kind] = append(s.log[RefOf(o).Kind], Change{Object: o})
	return copyOf(o)
}

func (s *store) remove(o client.Object) client.Object {
	s.stamp(o)
	delete(s.objects, RefOf(o))
	s.log[RefOf(o).Kind] = append(s.log[RefOf(o).Kind], Change{Object: o, Deleted: true})
	return copyOf(o)
}

func (s *store) stamp(o client.Object) {
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
}

// list returns copies of the objects of a kind, ordered by name.
func (s *store) list(kind Kind, namespace string) []client.Object {
	out := s.view(kind, namespace)
	for i, o := range out {
		out[i] = copyOf(o)
	}
	return out
}

// view returns the objects of a kind, ordered by name. They are not to be changed.
func (s *store) view(kind Kind, namespace string) []client.Object {
	var out []client.Object
	for ref, o := range s.objects {
		if ref.Kind == kind && (namespace == "" || namespace == ref.Namespace) {
			out = append(out, o)
		}
	}
	if len(out) > 1 {
		slices.SortFunc(out, func(a, b client.Object) int { return compare(RefOf(a), RefOf(b)) })
	}
	return out
}

// specOf returns the spec of an object whose spec may change.
func specOf(o client.Object) (any, bool) {
	switch p := o.(type) {
	case *v1alpha1.NetworkPool:
		return p.Spec, true
	case *cilium.Pool:
		return p.Spec, true
	}
	return nil, false
}

func copyOf(o client.Object) client.Object {
	out, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		panic(fmt.Sprintf("a copy of %T is not an object", o))
	}
	return out
}

// sent returns what arrives of an object that a client sends: times have seconds, for example.
func sent(o client.Object) client.Object { return typed(RefOf(o), untyped(o)) }

// untyped returns what an object is in JSON, and typed an object of that: as by bytes, which take twice as long.
func untyped(o client.Object) map[string]any {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		panic(err)
	}
	return out
}

func typed(ref Ref, content map[string]any) client.Object {
	out := ref.empty()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, out); err != nil {
		panic(err)
	}
	return out
}

// merge applies a JSON merge patch (RFC 7386).
func merge(is, patch map[string]any) map[string]any {
	if is == nil {
		is = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(is, k)
		case map[string]any:
			below, _ := is[k].(map[string]any)
			is[k] = merge(below, v)
		default:
			is[k] = v
		}
	}
	return is
}

func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

func decode(raw []byte, into any) {
	if err := json.Unmarshal(raw, into); err != nil {
		panic(err)
	}
}
