// Package process is what the manager and hosts need to run at all: their flags, connection and kinds, their log.
package process

import (
	"fmt"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Connection is how the manager talks to its API server.
func Connection() (*rest.Config, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the API server: %w", err)
	}
	// API priority and fairness governs how fast we may write, not a limit of our own.
	cfg.QPS, cfg.Burst = -1, -1
	// A manager sits next to its API server: compressing large lists costs more than sending them.
	cfg.DisableCompression = true
	cfg.UserAgent = "butler-ipam-manager"
	return cfg, nil
}
