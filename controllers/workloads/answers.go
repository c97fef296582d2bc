package workloads

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kubeconfig"
)

const (
	// answerTimeout bounds one question to an API server, askers how many are asked at once.
	answerTimeout = 10 * time.Second
	askers        = 4
)

// Answers has what the API servers answer to which clustercache gets no connection. It keeps to itself why: one that refuses
// looks to it like one that is away. Its zero value knows nothing.
type Answers struct {
	mu    sync.Mutex
	by    map[client.ObjectKey]*answer
	slots chan struct{}
}

type answer struct {
	asked bool
	why   error
}

// Refusal returns what the API server of a Cluster refused when it was asked last, and has it asked again; wake is called when
// it answers something else. Nil: nothing, as far as is known. It does not wait for the server.
func (a *Answers) Refusal(ctx context.Context, live client.Reader, cluster client.ObjectKey, wake func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.by == nil {
		a.by, a.slots = map[client.ObjectKey]*answer{}, make(chan struct{}, askers)
	}
	is := a.by[cluster]
	if is == nil {
		is = &answer{}
		a.by[cluster] = is
	}
	if !is.asked {
		is.asked = true
		go a.ask(context.WithoutCancel(ctx), live, cluster, is, wake)
	}
	return is.why
}

// Forget forgets what is known of a Cluster.
func (a *Answers) Forget(cluster client.ObjectKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.by, cluster)
}

func (a *Answers) ask(ctx context.Context, live client.Reader, cluster client.ObjectKey, is *answer, wake func()) {
	a.slots <- struct{}{}
	why := askRoot(ctx, live, cluster)
	<-a.slots
	if a.note(is, why) {
		wake()
	}
}

func (a *Answers) note(is *answer, why error) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = fmt.Sprint(is.why) != fmt.Sprint(why)
	is.asked, is.why = false, why
	return changed
}

// askRoot asks what clustercache asks to see whether a server answers, and returns what is refused.
func askRoot(ctx context.Context, live client.Reader, cluster client.ObjectKey) error {
	config, err := kubeconfig.ConfigOf(ctx, live, cluster)
	if err != nil {
		return nil //nolint:nilerr // WithoutKubeconfig says so
	}
	config.Timeout = answerTimeout
	asking, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil //nolint:nilerr // it refuses nothing, as far as is known
	}
	err = asking.RESTClient().Get().AbsPath("/").Do(ctx).Error()
	if IsRefusal(err) {
		return fmt.Errorf("GET / of %s: %w", config.Host, err)
	}
	return nil
}
