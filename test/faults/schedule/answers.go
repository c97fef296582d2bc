package schedule

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ErrTimeout is what a client is told whose answer is lost, ErrKilled one that does not live any more.
var (
	ErrTimeout = apierrors.NewTimeoutError("the answer was lost", 1)
	ErrKilled  = errors.New("killed")
)
