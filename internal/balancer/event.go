package balancer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// EmitEvent creates an event on a Service of a workload cluster. The name of the event is a hash of its content, so
// that it is created once for as long as the cluster keeps it, whichever manager creates it.
func EmitEvent(ctx context.Context, tenant client.Client, s *elastic.Service, reason, note string) error {
	sum := sha256.Sum256([]byte(s.Key() + reason + note))
	service := &corev1.Service{}
	if err := tenant.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name}, service); err != nil {
		return client.IgnoreNotFound(err)
	}
	err := tenant.Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name + "." + hex.EncodeToString(sum[:8])},
		EventTime:           metav1.NowMicro(),
		ReportingController: "butler-ipam", ReportingInstance: "butler-ipam",
		Type: corev1.EventTypeWarning, Reason: reason, Action: "Allocate", Note: text.SanitizeNote(note),
		Regarding: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name, UID: service.UID, ResourceVersion: service.ResourceVersion,
		},
	})
	if err = client.IgnoreAlreadyExists(err); err != nil {
		return fmt.Errorf("writing an event on Service %s: %w", s.Key(), err)
	}
	return nil
}
