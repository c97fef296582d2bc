package page

import (
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// FilterProvider makes the filter that authenticates callers; nil: there is none.
type FilterProvider = func(*rest.Config, *http.Client) (server.Filter, error)

// OpenFiles lets everybody have the files of the page, and nothing else. A browser cannot send a token before it
// has a page to send it from; what the page then shows is filtered as everything is.
func OpenFiles(provider FilterProvider) FilterProvider {
	if provider == nil {
		return nil
	}
	return func(cfg *rest.Config, c *http.Client) (server.Filter, error) {
		filter, err := provider(cfg, c)
		if err != nil {
			return nil, err
		}
		return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
			if _, open := handler.(Files); open {
				return handler, nil
			}
			return filter(log, handler)
		}, nil
	}
}
