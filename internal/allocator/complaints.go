package allocator

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// complainEvery is how often the log says that jobs of a pool fail for one cause: thousands may, as long as a quota or a
// policy lasts.
const complainEvery = time.Minute

// cause is why jobs of a pool fail: what they were to do, and what kind of answer there was.
type cause struct {
	pool   pools.Key
	text   string
	reason metav1.StatusReason
}

// complaints are the causes that the log has told of. The zero value is none.
type complaints struct {
	mu   sync.Mutex
	told map[cause]*complaint
}

// complaint is when the log told of a cause, and how often it was left out since.
type complaint struct {
	at      time.Time
	leftOut int
}

// due reports whether the log is to tell of a cause, and how often it was left out before.
func (c *complaints) due(of cause, now time.Time) (leftOut int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.told[of]
	if was != nil && now.Sub(was.at) < complainEvery {
		was.leftOut++
		return 0, false
	}
	for other, w := range c.told { // a claim can name any pool
		if now.Sub(w.at) >= 2*complainEvery {
			delete(c.told, other)
		}
	}
	if c.told == nil {
		c.told = map[cause]*complaint{}
	}
	c.told[of] = &complaint{at: now}
	if was != nil {
		leftOut = was.leftOut
	}
	return leftOut, true
}

// complain logs that a job has failed, unless the log has just told as much.
func (a *Allocator) complain(ctx context.Context, pool pools.Key, err error, text string, about ...any) {
	leftOut, due := a.complaints.due(cause{pool, text, apierrors.ReasonForError(err)}, a.now())
	if !due {
		return
	}
	if leftOut > 0 {
		about = append(about, "alike", leftOut)
	}
	log.FromContext(ctx).Error(err, text, append(about, "pool", pool.String())...)
}
