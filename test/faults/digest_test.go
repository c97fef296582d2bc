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

// The digest depends on the requests and on what they wrote, but not on the text of conditions.
func TestDigestDependsOnRequests(t *testing.T) {
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

// digestOf returns the digest of a server that has received a write of a condition of a claim with a label.
func digestOf(t *testing.T, message, label string) []byte {
	t.Helper()
	s := NewServer()
	claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", Labels: map[string]string{"is": label}}}
	if err := s.Create(claim); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		patch := `{"status":{"conditions":[{"type":"Ready","status":"False","reason":"R","message":"` + message + `","lastTransitionTime":null}]}}`
		done <- s.NewClient("a").Status().Patch(t.Context(), claim, client.RawPatch(types.MergePatchType, []byte(patch)))
	}()
	synctest.Wait()
	r := s.PendingRequests()[0]
	s.TakeRequest(r)
	r.Answer(s.ExecuteRequest(r))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	of := s.Digest()
	if !bytes.Equal(of, s.Digest()) {
		t.Error("it differs when it is asked for again")
	}
	return of
}
