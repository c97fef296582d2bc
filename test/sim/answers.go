package sim

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ErrTimeout is the error of a call whose answer is lost, ErrKilled that of a call of a client whose manager was
// killed.
var (
	ErrTimeout = apierrors.NewTimeoutError("the answer was lost", 1)
	ErrKilled  = errors.New("killed")
)
