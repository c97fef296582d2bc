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

// Change is an event of a watch.
type Change struct {
	Deleted bool
	Object  client.Object
}

// store holds the objects of the server. Objects in it are never changed, only replaced.
type store struct {
	objects map[Ref]client.Object
	// changes holds all changes so far, by kind.
	changes  map[Kind][]Change
	version  int64
	uidCount int
	// webhook changes the metadata of an object that is written, as mutating admission does; nil means no webhook.
	webhook func(client.Object)
}

func (s *store) get(ref Ref) (client.Object, error) {
	if o, ok := s.objects[ref]; ok {
		return copyObject(o), nil
	}
	return nil, apierrors.NewNotFound(ref.groupResource(), ref.Name)
}

func (s *store) create(o client.Object) (client.Object, error) {
	ref := RefForObject(o)
	if _, exists := s.objects[ref]; exists {
		return nil, apierrors.NewAlreadyExists(ref.groupResource(), ref.Name)
	}
	s.uidCount++
	o = roundTrip(o)
	// The UIDs are distinct, and in no order, like those of a real API server: Knuth's multiplicative hash.
	o.SetUID(types.UID(fmt.Sprintf("uid-%08x", uint32(s.uidCount)*2654435761)))
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	o.SetGeneration(1)
	copyStatus(o, ref.newObject())
	if s.webhook != nil {
		s.webhook(o)
	}
	return s.putObject(o), nil
}

// update replaces an object, or its status alone.
func (s *store) update(o client.Object, status bool) (client.Object, error) {
	ref := RefForObject(o)
	old, exists := s.objects[ref]
	if !exists {
		return nil, apierrors.NewNotFound(ref.groupResource(), ref.Name)
	}
	if err := checkPreconditions(ref, old, o.GetUID(), o.GetResourceVersion()); err != nil {
		return nil, err
	}
	return s.replaceObject(ref, old, roundTrip(o), status)
}

// patch applies a JSON merge patch to an object, or to its status alone.
func (s *store) patch(ref Ref, body []byte, status bool) (client.Object, error) {
	old, exists := s.objects[ref]
	if !exists {
		return nil, apierrors.NewNotFound(ref.groupResource(), ref.Name)
	}
	patch := &unstructured.Unstructured{}
	decodeJSON(body, &patch.Object)
	uid, version := patch.GetUID(), patch.GetResourceVersion()
	if ref.Kind == Nodes && uid != "" && uid != old.GetUID() {
		return nil, newInvalidError(ref, "metadata.uid", "field is immutable") // the core kinds answer with this error
	}
	if err := checkPreconditions(ref, old, uid, version); err != nil {
		return nil, err
	}
	return s.replaceObject(ref, old, toTyped(ref, mergePatch(toUntyped(old), patch.Object)), status)
}

// apply does a forced server-side apply by the only field manager: it sets the fields in body, and replaces lists as
// a whole.
func (s *store) apply(ref Ref, body []byte) (client.Object, error) {
	if _, exists := s.objects[ref]; exists {
		return s.patch(ref, body, false)
	}
	o := ref.newObject()
	decodeJSON(body, o)
	if o.GetUID() != "" {
		return nil, apierrors.NewConflict(ref.groupResource(), ref.Name, errors.New("it has a UID, and does not exist"))
	}
	return s.create(o)
}

// delete deletes an object, or sets its deletion timestamp if it has finalizers.
func (s *store) delete(ref Ref, uid types.UID, version string) (client.Object, error) {
	old, exists := s.objects[ref]
	if !exists {
		return nil, apierrors.NewNotFound(ref.groupResource(), ref.Name)
	}
	if err := checkPreconditions(ref, old, uid, version); err != nil {
		return nil, err
	}
	next := copyObject(old)
	if len(old.GetFinalizers()) == 0 {
		return s.removeObject(next), nil
	}
	if old.GetDeletionTimestamp() == nil {
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		next.SetDeletionTimestamp(&now)
		return s.putObject(next), nil
	}
	return next, nil
}

func checkPreconditions(ref Ref, old client.Object, uid types.UID, version string) error {
	if uid != "" && uid != old.GetUID() {
		return apierrors.NewConflict(ref.groupResource(), ref.Name, fmt.Errorf("UID is %s, not %s", old.GetUID(), uid))
	}
	if version != "" && version != old.GetResourceVersion() {
		return apierrors.NewConflict(ref.groupResource(), ref.Name, fmt.Errorf("resource version is %s, not %s", old.GetResourceVersion(), version))
	}
	return nil
}

// replaceObject replaces old by next, within the limits of what a client may change.
func (s *store) replaceObject(ref Ref, old, next client.Object, status bool) (client.Object, error) {
	if status {
		sent := next
		next = copyObject(old)
		copyStatus(next, sent)
	} else {
		copyStatus(next, old)
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
	if err := validateUpdate(ref, old, next); err != nil {
		return nil, err
	}
	if before, is := comparableSpec(old); is {
		if after, _ := comparableSpec(next); !equality.Semantic.DeepEqual(before, after) {
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
			return s.removeObject(next), nil
		}
	}
	return s.putObject(next), nil
}

// validateUpdate does the built-in validation of the API server: the CIDRs of a Node cannot be changed.
func validateUpdate(ref Ref, old, next client.Object) error {
	was, is := old.(*corev1.Node)
	will, _ := next.(*corev1.Node)
	if is && len(was.Spec.PodCIDRs) > 0 && !slices.Equal(was.Spec.PodCIDRs, will.Spec.PodCIDRs) {
		return newInvalidError(ref, "spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid")
	}
	return nil
}

func newInvalidError(ref Ref, path, why string) error {
	return apierrors.NewInvalid(schema.GroupKind{Kind: string(ref.Kind)}, ref.Name, field.ErrorList{field.Forbidden(field.NewPath(path), why)})
}

func (s *store) putObject(o client.Object) client.Object {
	s.stampVersion(o)
	s.objects[RefForObject(o)] = o
	s.changes[RefForObject(o).Kind] = append(s.changes[RefForObject(o).Kind], Change{Object: o})
	return copyObject(o)
}

func (s *store) removeObject(o client.Object) client.Object {
	s.stampVersion(o)
	delete(s.objects, RefForObject(o))
	s.changes[RefForObject(o).Kind] = append(s.changes[RefForObject(o).Kind], Change{Object: o, Deleted: true})
	return copyObject(o)
}

func (s *store) stampVersion(o client.Object) {
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
}

// list returns copies of the objects of a kind, ordered by namespace and name.
func (s *store) list(kind Kind, namespace string) []client.Object {
	out := s.listShared(kind, namespace)
	for i, o := range out {
		out[i] = copyObject(o)
	}
	return out
}

// listShared returns the objects of a kind, ordered by namespace and name. Callers must not change them.
func (s *store) listShared(kind Kind, namespace string) []client.Object {
	var out []client.Object
	for ref, o := range s.objects {
		if ref.Kind == kind && (namespace == "" || namespace == ref.Namespace) {
			out = append(out, o)
		}
	}
	if len(out) > 1 {
		slices.SortFunc(out, func(a, b client.Object) int { return compareRefs(RefForObject(a), RefForObject(b)) })
	}
	return out
}

// comparableSpec returns the spec of an object whose spec may change, for the generation.
func comparableSpec(o client.Object) (any, bool) {
	switch p := o.(type) {
	case *v1alpha1.NetworkPool:
		return p.Spec, true
	case *cilium.Pool:
		return p.Spec, true
	}
	return nil, false
}

func copyObject(o client.Object) client.Object {
	out, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		panic(fmt.Sprintf("a copy of %T is not an object", o))
	}
	return out
}

// roundTrip returns the object that arrives when a client sends o: times are cut to seconds, for example.
func roundTrip(o client.Object) client.Object { return toTyped(RefForObject(o), toUntyped(o)) }

// toUntyped converts an object to its JSON form, and toTyped converts it back. A conversion by encoding to bytes
// takes twice as long.
func toUntyped(o client.Object) map[string]any {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		panic(err)
	}
	return out
}

func toTyped(ref Ref, content map[string]any) client.Object {
	out := ref.newObject()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, out); err != nil {
		panic(err)
	}
	return out
}

// mergePatch applies a JSON merge patch (RFC 7386).
func mergePatch(is, patch map[string]any) map[string]any {
	if is == nil {
		is = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(is, k)
		case map[string]any:
			below, _ := is[k].(map[string]any)
			is[k] = mergePatch(below, v)
		default:
			is[k] = v
		}
	}
	return is
}

func encodeJSON(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

func decodeJSON(raw []byte, into any) {
	if err := json.Unmarshal(raw, into); err != nil {
		panic(err)
	}
}
