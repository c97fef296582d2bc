package faults

import (
	"bytes"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What was asked, and what was written of it, makes another digest; the text of a condition does not.
func TestDigest(t *testing.T) {
	digest := func(message, label string) (of []byte) {
		synctest.Test(t, func(t *testing.T) { of = digestOf(t, message, label) })
		return of
	}
	base := digest("one", "x")
	if !bytes.Equal(base, digest("one", "x")) || !bytes.Equal(base, digest("another", "x")) {
		t.Error("the same requests have another digest")
	}
	if bytes.Equal(base, digest("one", "y")) {
		t.Error("what was written is not in the digest")
	}
}

// digestOf is the digest of a server that was asked to write a condition of a claim with a label.
func digestOf(t *testing.T, message, label string) []byte {
	t.Helper()
	s := New()
	claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", Labels: map[string]string{"is": label}}}
	if err := s.Create(claim); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		patch := `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"R","message":"` + message + `","lastTransitionTime":null}]}}`
		done <- s.Client("a").Status().Patch(t.Context(), claim, client.RawPatch(types.MergePatchType, []byte(patch)))
	}()
	synctest.Wait()
	r := s.Waiting()[0]
	s.Take(r)
	r.Answer(s.Do(r))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	of := s.Digest()
	if !bytes.Equal(of, s.Digest()) {
		t.Error("it differs when it is asked for again")
	}
	return of
}
