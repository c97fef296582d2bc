package tenant

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestTimeLimitedClient checks that a manager that wakes up late creates nothing, even if its timers have not fired
// yet.
func TestTimeLimitedClient(t *testing.T) {
	since := time.Unix(1_000_000, 0)
	for after, late := range map[time.Duration]bool{0: false, maxProjectionTime: false, maxProjectionTime + time.Second: true} {
		c := timeLimitedClient{fake.NewFakeClient(), clocktesting.NewFakePassiveClock(since.Add(after)), since}
		err := c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}})
		if errors.Is(err, errStaleRead) != late || (err != nil) != late {
			t.Errorf("%v later: %v", after, err)
		}
	}
}
