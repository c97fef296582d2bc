// Package process contains what the manager and the program on hosts need to run: flags, connection, required kinds
// and log.
package process

import (
	"fmt"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// NewRESTConfig returns the configuration for the connection of the manager to its API server.
func NewRESTConfig() (*rest.Config, error) {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the API server: %w", err)
	}
	// API priority and fairness limits the rate of requests, not a limit on the client side.
	cfg.QPS, cfg.Burst = -1, -1
	// A manager runs next to its API server: compressing large lists costs more than sending them.
	cfg.DisableCompression = true
	cfg.UserAgent = "butler-ipam-manager"
	return cfg, nil
}
